# A tree of make with two jobs at a time: rules that write, append and rename. $1 chooses the names.
cd "$D" || exit
mkdir -p src out
for i in 1 2 3 4 5 6 7 8; do seq 1 $((i * 50 + $1)) >src/$i.txt; done
cat >Makefile <<'TEXT'
PARTS := $(patsubst src/%.txt,out/%.o,$(wildcard src/*.txt))
all: out/whole out/count
out/%.o: src/%.txt
	@sort -rn $< >$@.tmp && mv $@.tmp $@ && echo $@ >>out/order
out/whole: $(PARTS)
	@cat $(sort $^) >$@.tmp && mv -f $@.tmp $@
out/count: out/whole
	@wc -lc <$< >$@ && wc -l <out/order >>$@
clean:
	@rm -rf out && mkdir out
TEXT
for round in 1 2 3; do
    make -s -j2 || echo "make: $?"
    cat out/count
    md5sum <out/whole
    make -s -j2 clean
done
make -s -j2
sort out/order
rm out/order
