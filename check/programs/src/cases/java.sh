. "$A/cases/common.sh"
# Class data sharing and a small heap only make the start faster.
java -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto -cp "$A/bin" Channels "$1" "$D" "$W"
