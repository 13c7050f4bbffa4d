# shellcheck shell=sh
# In a container: runs a program to its end, between files of the agent's. What it leaves running
# holds no stream of the runtime's. DIRECTORY PROGRAM WORD...
directory=$1 program=$2
shift 2
[ -p "$directory/out" ] || { echo unseen && exit; }
for needed in env "$program"; do
    command -v -- "$needed" >/dev/null || { echo "missing $needed" && exit; }
done
in=/dev/null
[ ! -e "$directory/in" ] || in=$directory/in
"$@" <"$in" >"$directory/out" 2>"$directory/err"
echo "ended $?"
