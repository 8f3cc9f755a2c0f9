# git, with everything that its commands start. $1 chooses what is written.
cd "$D" || exit
git init -q -b main repository && cd repository || exit
# When the lowest member is lost, stat(2) gives another file number and another time of the last change of attributes (README, Limits). With both in the
# index, git takes every file for changed in that instant, and `git merge` ends with "stash failed". So are hard links compared by `git clone` with what they
# are made of, the number asked before link(2) and after it: "hardlink different from source", exit status 128. Hence the settings, and the option below.
git config core.trustctime false && git config core.checkStat minimal
for i in 1 2 3; do
    mkdir -p "d$i"
    seq 1 $((i * 100 + $1)) >"d$i/numbers"
    echo "text $i $1" >>text
    git add -A && git commit -qm "commit $i"
    git branch "b$i"
done
git checkout -q b2
echo "other $1" >other && git add other && git commit -qm "on b2"
git checkout -q main
git merge -q -m "merged" b2 || echo "merge: $?"
git tag -m "tag" v1
git mv text moved && git commit -qm "moved"
git gc -q || echo "gc: $?"
git status --short
git log --format='%H %s'
git fsck --strict 2>/dev/null
git diff --stat b1 main
cd .. && git clone -q --no-hardlinks repository clone 2>/dev/null && git -C clone log --format=%H | md5sum
