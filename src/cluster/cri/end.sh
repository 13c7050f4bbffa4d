# shellcheck shell=sh
# In a container: ends what has this word in its environment and has not ended by itself within so
# many seconds, or only says whether there is anything. WORD SECONDS|look
word=$1 seconds=$2
running() {
    for process in /proc/[0-9]*; do
        tr '\0' '\n' 2>/dev/null <"$process/environ" | grep -qxF -- "$word" && echo "${process#/proc/}"
    done 2>/dev/null
}
found=$(running)
[ "$seconds" != look ] || { echo "${found:+left}" && exit; }
until=$(($(date +%s) + seconds))
while [ -n "$found" ]; do
    late=$(($(date +%s) - until))
    # shellcheck disable=SC2086 # several
    if [ "$late" -gt 0 ]; then
        kill -9 $found
    elif [ "$late" -eq 0 ]; then
        kill $found
    fi 2>/dev/null
    [ "$late" -lt 3 ] || { echo stuck && exit; }
    sleep 0.1 2>/dev/null || sleep 1
    found=$(running)
done
echo ended
