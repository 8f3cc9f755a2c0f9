. "$A/cases/common.sh"
# Whether a command finds that the index wants refreshing depends on the second it began in.
export GIT_OPTIONAL_LOCKS=0
# With several threads it is chance which deltas a pack holds.
export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=pack.threads GIT_CONFIG_VALUE_0=1
# fsck tells what is dangling, in no order, and on standard error, where the library may say that a member is missing.
fsck() { git -C "$1" fsck --strict --full --no-progress 2>&1 | sed '/^cxlraid: /d' | sort; }
commit() { git add -A && git commit -q -m "$1"; }
first() {
    git init -q -b main "$D/repo"
    cd "$D/repo"
    cp -a "$A/tree/." .
    commit tree
    for n in 1 2 3 4 5 6; do
        echo "change $n" >>text
        head -c $((n * 3000)) "$A/tree/large" >"blob$n"
        commit "change $n"
    done
    git branch side HEAD~3
    git checkout -q side
    echo side >side
    git mv odd odd-renamed
    commit side
    git checkout -q main
    git merge -q -m merge side
    git tag -a -m release v1
    git log --oneline --stat | cksum
    git gc -q
    git count-objects -v | grep -v size
    git status --short
    fsck .
    git clone -q "$D/repo" "$D/clone"
    git clone -q --bare --no-local "$D/repo" "$D/bare.git"
    git -C "$D/clone" rev-parse HEAD
    fsck "$D/clone"
    git archive HEAD | cksum
    git diff HEAD~4 | cksum
}
again() {
    cd "$D/clone"
    git status --short
    fsck .
    echo more >>text
    rm page
    commit again
    git push -q origin HEAD:refs/heads/from-clone
    git -C "$D/repo" rev-parse from-clone
    git stash list
    echo stashed >>text
    git stash -q
    git pull -q "$D/bare.git" main
    git log --format=%H -n 2
    cd "$D/repo"
    git merge -q -m "merge again" from-clone
    git repack -q -a -d
    git rev-parse HEAD
    git rebase -q HEAD~1 2>&1 | tail -n 1
    git grep -c change
    git clone -q "$D/bare.git" "$W/out"
    git -C "$W/out" rev-parse HEAD
    fsck "$D/repo"
    git -C "$D/bare.git" -c pack.threads=4 repack -q -a -d -f
    fsck "$D/bare.git"
    git -C "$D/bare.git" repack -q -a -d -f
    fsck "$D/bare.git"
}
"$1"
