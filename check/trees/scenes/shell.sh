# What a shell and its children do with redirections, pipelines, subshells and names. $1 chooses how much of each.
cd "$D" || exit
exec 3>>log 4<>both
for i in 1 2 3 4 5 6; do
    echo "line $i" >&3
    /bin/echo "child $i" >&3
    seq "$i" $((i + 40 + $1)) | sort -rn | tee "part$i" | tail -3 >>tails
    mkdir -p "sub$((i % 3))"
    (
        cd "sub$((i % 3))" || exit
        pwd >>../where
        /bin/pwd >>../where
        cat >"here$i" <<TEXT
this is $i
of $1
TEXT
    )
    mv "part$i" "sub$((i % 3))/part$i"
    ln -f log "link$i"
    ln -sf "sub$((i % 3))/part$i" symbolic
    wc -l <symbolic
    for j in 1 2 3; do echo "background $i $j"; done >"background$i" &
    printf '%d\n' "$i" >&4
    head -c $((i * 3000 + $1)) /dev/zero | tr '\0' "$i" >"filled$i"
    wait
    cp log "copy$i"
    cmp log "copy$i" && wc -l <"copy$i"
    find . -name 'here*' -exec cat {} + | wc -c
    rm -f "copy$i" "link$((i - 2))"
    test -e "filled$i" && stat -c '%s %h %n' "filled$i" log
    chmod 6"$i"0 "filled$i"
    ls sub* | sort | md5sum
done
cat log tails where both
cat <&4 | wc -l
