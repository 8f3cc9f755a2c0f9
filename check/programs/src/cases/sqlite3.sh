. "$A/cases/common.sh"
sql() { sqlite3 -batch -bail "$D/rows.db"; }
first() {
    sql <<'SQL'
pragma journal_mode = delete;
create table rows(id integer primary key, text, number real);
create index by_text on rows(text);
begin;
with recursive n(i) as (select 1 union all select i + 1 from n where i < 8000)
insert into rows select i, hex(i * 7919), i / 7.0 from n;
commit;
begin; delete from rows where id % 3 = 0; rollback;
begin; update rows set text = text || 'x' where id % 5 = 0; commit;
begin; savepoint s; delete from rows; rollback to s; commit;
select count(*), sum(id), max(text) from rows;
create table blobs(id integer primary key, content blob);
SQL
    for n in 1 2 3 4 5; do echo "insert into blobs(content) select hex(zeroblob($n * 30000));" | sql; done
    sql <<'SQL'
pragma journal_mode = truncate;
insert into rows(text) values('truncate');
pragma journal_mode = persist;
insert into rows(text) values('persist');
pragma synchronous = extra;
insert into rows(text) values('extra');
pragma journal_mode = delete;
select sum(length(content)) from blobs;
vacuum;
pragma integrity_check;
vacuum into 'second.db';
.dump rows
SQL
}
again() {
    sql <<'SQL'
pragma integrity_check;
select count(*), sum(id), max(text) from rows;
begin; delete from rows where id % 2 = 0; insert into rows(text) select text from rows where id < 3000; commit;
drop table blobs;
pragma mmap_size = 10000000;
select count(*) from rows where text like '%x';
attach 'second.db' as second;
insert into second.rows(text) select text from rows where id > 7000;
begin; update rows set number = id; update second.rows set number = id; commit;
select count(*) from second.rows;
vacuum;
pragma integrity_check;
SQL
    # Two writers, each with its own connection, waiting for each other's locks.
    for writer in 1 2; do
        for n in $(seq 1 25); do echo "insert into rows(text) values('writer $writer, $n');"; done |
            sqlite3 -batch -bail -cmd '.timeout 20000' "$D/rows.db" &
    done
    wait
    echo "select text, count(*) from rows where text like 'writer%' group by text order by text; pragma integrity_check;" | sql
    # A process that is killed leaves a hot journal; the next one rolls it back.
    # A small cache makes it write to the database before it commits.
    printf '%s\n' 'pragma cache_size = 3;' 'begin;' "update rows set text = 'lost';" '.system kill -9 $PPID' | sql 2>/dev/null || true
    ls "$D" | grep -c journal
    echo "select count(*) from rows where text = 'lost'; pragma integrity_check;" | sql
}
# The second database is named relatively, so that the working directory is the array's.
cd "$D"
"$1"
sqlite3 second.db 'select count(*) from sqlite_master; pragma integrity_check'
# In which order two writers got their rows, and so their numbers and pages, is chance.
if [[ $1 == again ]]; then
    sqlite3 rows.db 'select text, number from rows order by text, number' | tee dump | sha256sum
    rm -f rows.db rows.db-journal
else
    sqlite3 rows.db .dump | sha256sum
fi
