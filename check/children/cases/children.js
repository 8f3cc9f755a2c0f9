// Files by way of node's threads while it starts children: children.js DIRECTORY WAY.
const fs = require("fs");
const { execFile, fork, spawn } = require("child_process");

const [directory, way] = process.argv.slice(2);
const WRITERS = 6, FILES = 20, CHILDREN = 60;
// Small files are opened and closed all the time; large ones keep node's threads inside their calls.
const SIZES = [3000, 3000, 60000, 3000, 200001];
let over = false;

const content = (writer, file, version) => Buffer.alloc(SIZES[file % SIZES.length], `${writer}.${file}.${version}|`);
const must = (condition, what) => {
    if (!condition) throw new Error(what);
};
const ended = (child) => new Promise((resolve, reject) => child.on("error", reject).on("exit", (code, signal) => resolve(signal ?? code)));

if (way === "child") {
    fs.appendFileSync(`${directory}/told`, `told ${process.argv[4]}\n`);
    process.send({ seen: fs.readFileSync(`${directory}/quiet-0`).equals(content("q", 0, 0)) }, () => process.exit(0));
    return;
}

async function keep(writer) {
    for (let version = 1; !over; version++) {
        for (let file = 0; file < FILES; file++) {
            const handle = await fs.promises.open(`${directory}/company-${writer}-${file}`, "w");
            const text = content(writer, file, version);
            for (let start = 0; start < text.length; start += text.length / 3) {
                const { bytesWritten } = await handle.write(text, start, text.length / 3);
                must(bytesWritten === text.length / 3, `write gave ${bytesWritten}`);
            }
            await handle.close();
        }
        for (let file = 0; file < FILES; file++) {
            const found = await fs.promises.readFile(`${directory}/company-${writer}-${file}`);
            must(found.equals(content(writer, file, version)), `company-${writer}-${file}: ${found.length} bytes, not those written`);
        }
    }
}

async function children() {
    for (let number = 0; number < CHILDREN; number++) {
        if (way === "exec") {
            await new Promise((resolve, reject) => execFile("true", (error) => (error ? reject(error) : resolve())));
            const out = await new Promise((resolve, reject) =>
                execFile("cat", [`quiet-${number % 10}`], { cwd: directory, encoding: "buffer" }, (error, text) => (error ? reject(error) : resolve(text))));
            must(out.equals(content("q", number % 10, 0)), `cat gave ${out.length} bytes`);
        } else if (way === "output") {
            const log = fs.openSync(`${directory}/log`, "a");
            const own = fs.openSync(`${directory}/own`, "w");
            fs.writeSync(log, `parent ${number}\n`);
            fs.writeSync(own, `head ${number}\n`);
            const both = [spawn("echo", ["to the log"], { stdio: ["ignore", log, log] }), spawn("echo", ["behind the head"], { stdio: ["ignore", own, own] })];
            for (const code of await Promise.all(both.map(ended))) must(code === 0, `a child ended with ${code}`);
            fs.writeSync(own, "tail\n");
            fs.closeSync(log);
            fs.closeSync(own);
            const text = fs.readFileSync(`${directory}/own`, "utf8");
            must(text === `head ${number}\nbehind the head\ntail\n`, `own holds ${JSON.stringify(text)}`);
        } else if (number % 5 === 0) {
            const child = fork(__filename, [directory, "child", String(number)]);
            const answers = [];
            child.on("message", (answer) => answers.push(answer.seen));
            const code = await ended(child);
            must(code === 0 && answers.length === 1 && answers[0], `child ${number} ended with ${code} and said ${answers}`);
        }
    }
}

async function main() {
    for (let file = 0; file < 10; file++) fs.writeFileSync(`${directory}/quiet-${file}`, content("q", file, 0));
    const keepers = Array.from({ length: WRITERS }, (_, writer) => keep(writer));
    await Promise.race([children(), ...keepers]);
    over = true;
    await Promise.all(keepers);
    for (let file = 0; file < 10; file++)
        must(fs.readFileSync(`${directory}/quiet-${file}`).equals(content("q", file, 0)), `quiet-${file}, which nobody writes, has changed`);
    console.log(way, CHILDREN);
}

main().catch((error) => {
    console.error(error.message);
    process.exit(1);
});
