// Node's three ways to files: synchronous, promises (a pool of threads) and streams.
'use strict';
const fs = require('fs');
const path = require('path');
const crypto = require('crypto');
const { pipeline } = require('stream/promises');
const { once } = require('events');
const { execFileSync, spawnSync } = require('child_process');

const [what, base] = process.argv.slice(2);
const d = what === 'again' ? path.join(base, 'again') : base;
const digest = (bytes) => crypto.createHash('sha256').update(bytes).digest('hex').slice(0, 16);
let state = what === 'again' ? 77 : 5;
const random = (size) => {
  const bytes = Buffer.alloc(size);
  for (let i = 0; i < size; i++) {
    state = (Math.imul(state, 1103515245) + 12345) >>> 0;
    bytes[i] = state >>> 16;
  }
  return bytes;
};

function synchronous() {
  const file = path.join(d, 'sync');
  fs.writeFileSync(file, random(100000));
  fs.appendFileSync(file, 'appended');
  console.log(fs.statSync(file).size, digest(fs.readFileSync(file)));
  const fd = fs.openSync(file, 'r+');
  fs.writeSync(fd, random(5000), 0, 5000, 65000);
  fs.writevSync(fd, [random(10), random(20000)], 90000);
  const back = Buffer.alloc(7000);
  console.log(fs.readSync(fd, back, 0, 7000, 64500), digest(back));
  fs.ftruncateSync(fd, 99999);
  fs.fsyncSync(fd);
  fs.closeSync(fd);
  fs.mkdirSync(path.join(d, 'a/b/c'), { recursive: true });
  fs.copyFileSync(file, path.join(d, 'a/copied'));
  fs.symlinkSync('copied', path.join(d, 'a/link'));
  fs.linkSync(file, path.join(d, 'a/hard'));
  fs.renameSync(path.join(d, 'a/copied'), path.join(d, 'a/renamed'));
  fs.cpSync(path.join(d, 'a'), path.join(d, 'tree'), { recursive: true, verbatimSymlinks: true });
  fs.utimesSync(path.join(d, 'a/renamed'), 1e9, 1e9);
  fs.chmodSync(path.join(d, 'a/renamed'), 0o604);
  const names = fs.readdirSync(d, { withFileTypes: true }).map((e) => `${e.name}${e.isDirectory() ? '/' : ''}`);
  console.log(names.sort().join(' '), fs.readlinkSync(path.join(d, 'a/link')), fs.existsSync(path.join(d, 'a/link')));
  const stat = fs.statSync(path.join(d, 'a/renamed'), { bigint: true });
  console.log(stat.mtimeNs, stat.mode.toString(8), stat.size);
  for (const call of [() => fs.readFileSync(path.join(d, 'none')), () => fs.rmdirSync(path.join(d, 'a')),
    () => fs.openSync(file, 'wx'), () => fs.readFileSync(d)]) {
    try { call(); } catch (error) { console.log(error.code); }
  }
  fs.rmSync(path.join(d, 'a/b'), { recursive: true });
  const temporary = fs.mkdtempSync(path.join(d, 'tmp-'));
  fs.rmdirSync(temporary);
}

async function promises() {
  const names = Array.from({ length: 24 }, (_, i) => path.join(d, `promise-${i}`));
  const contents = names.map((_, i) => random(i * 3333));
  await Promise.all(names.map((name, i) => fs.promises.writeFile(name, contents[i])));
  const read = await Promise.all(names.map((name) => fs.promises.readFile(name)));
  console.log(read.every((bytes, i) => bytes.equals(contents[i])));
  const shared = await fs.promises.open(path.join(d, 'shared'), 'w+');
  const pieces = Array.from({ length: 40 }, (_, i) => random(1000 + i * 137));
  await Promise.all(pieces.map((piece, i) => shared.write(piece, 0, piece.length, i * 7000)));
  await shared.sync();
  const all = await shared.readFile();
  console.log(all.length, digest(all), (await shared.stat()).size);
  await shared.truncate(50000);
  await shared.close();
  for await (const entry of await fs.promises.opendir(d)) if (entry.name === 'promise-3') console.log(entry.isFile());
  await fs.promises.rm(names[0]);
  await fs.promises.access(names[0]).catch((error) => console.log(error.code));
}

async function streams() {
  const source = path.join(d, 'stream');
  const out = fs.createWriteStream(source, { highWaterMark: 5000 });
  for (let i = 0; i < 60; i++) if (!out.write(random(4000))) await once(out, 'drain');
  out.end();
  await once(out, 'finish');
  await pipeline(fs.createReadStream(source, { highWaterMark: 3333 }), fs.createWriteStream(source + '-copy'));
  console.log(digest(fs.readFileSync(source)), digest(fs.readFileSync(source + '-copy')));
  await pipeline(fs.createReadStream(source, { start: 1000, end: 200000 }), require('zlib').createGzip(), require('zlib').createGunzip(),
    fs.createWriteStream(source + '-part', { flags: 'a' }));
  console.log(fs.statSync(source + '-part').size, digest(fs.readFileSync(source + '-part')));
}

function children() {
  const log = fs.openSync(path.join(d, 'log'), 'a');
  const child = spawnSync('sh', ['-c', 'echo to the log; echo error >&2'], { stdio: ['ignore', log, log] });
  fs.writeSync(log, 'from the parent\n');
  fs.closeSync(log);
  console.log(child.status, fs.readFileSync(path.join(d, 'log'), 'utf8'));
  console.log(execFileSync('cat', [path.join(d, 'log')]).length);
}

(async () => {
  if (what === 'again') {
    console.log(digest(fs.readFileSync(path.join(base, 'sync'))), digest(fs.readFileSync(path.join(base, 'stream'))));
    fs.mkdirSync(d);
  }
  synchronous();
  await promises();
  await streams();
  children();
})();
