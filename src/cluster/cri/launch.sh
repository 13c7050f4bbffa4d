# shellcheck shell=sh
# In a container: starts what serves a volume, and ends it unless it is wanted within so many
# seconds: whoever has asked may have been killed. DIRECTORY PROGRAM SECONDS WORD...
directory=$1 program=$2 left=$3
shift 3
[ -w "$directory" ] || { echo unseen && exit; }
for needed in env head sleep "$program"; do
    command -v -- "$needed" >/dev/null || { echo "missing $needed" && exit; }
done
in=/dev/null
[ ! -e "$directory/in" ] || in=$directory/in
(
    # First: a shell keeps a copy of what it redirects for a while, and the runtime waits for it.
    exec </dev/null >/dev/null 2>&1
    {
        "$@" <"$in" &
        pid=$!
        while kill -0 "$pid" && [ ! -e "$directory/kept" ]; do
            [ "$left" -gt 0 ] || kill -9 "$pid"
            left=$((left - 1))
            sleep 1
        done >/dev/null 2>&1 &
        wait "$pid"
        echo $? >"$directory/ended" && mv "$directory/ended" "$directory/status"
    } 2>&1 | { head -c 65536 >"$directory/words" && exec cat >/dev/null; }
) &
echo started
