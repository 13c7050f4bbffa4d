/*
 * The measuring half of tests/bench and tests/process/startup.rs: starts programs and looks at what they cost.
 *
 *   bench cost RUNS COMMAND             median page faults, and the most memory of its own that one run had: "faults kib"
 *   bench pairs RUNS SIDE -- SIDE       median microseconds of each side and the median of the pairs' ratios: "a b a/b"
 *
 *   bench crowd COUNT COMMAND           COUNT of them at once, `@` in a word is the number: milliseconds for all, and of each
 *                                       the median and the 99th of a hundred: "all median p99"
 *
 *   SIDE = MOUNTS COMMAND [+ COMMAND]...
 *
 * A side's commands run one after the other and are timed together. They run in a mount namespace that holds MOUNTS more
 * mounts; sides that want different numbers each live in a process and a namespace of their own. The sides take turns, and
 * which goes first alternates. This program is static
 * and small, so what a child inherits from it before exec does not blur the child's figures; both sides pay the same for it.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { LIMIT = 100000 };

struct side {
    int mounts;
    char **commands;        /* words, commands parted by "+", ended by NULL */
    int ask, answer;        /* pipes to its process; 0 if it has none */
    double *microseconds;
};

static void die(const char *what)
{
    fprintf(stderr, "bench: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* Runs one command with the environment kubelet's drivers can rely on: none. It must succeed. */
static struct rusage run(char **words)
{
    static posix_spawn_file_actions_t actions;
    static int prepared;
    char *environment[] = {NULL};
    struct rusage usage;
    int status;
    pid_t child;

    if (!prepared++) {
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
        posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
    }
    if ((errno = posix_spawn(&child, words[0], &actions, NULL, words, environment)))
        die(words[0]);
    if (wait4(child, &status, 0, &usage) != child)
        die("wait4");
    if (status != 0) {
        fprintf(stderr, "bench: %s %s: status %#x\n", words[0], words[1] ? words[1] : "", status);
        exit(1);
    }
    return usage;
}

static double now(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

static double timed(char **commands)
{
    double start = now();

    for (char **word = commands; word; ) {
        char **end = word;
        while (*end && strcmp(*end, "+"))
            end++;
        char *plus = *end;
        *end = NULL;
        run(word);
        *end = plus;
        word = plus ? end + 1 : NULL;
    }
    return now() - start;
}

/* More mounts in this namespace: a tmpfs, and below it as many more as are asked for. */
static void clutter(int count)
{
    char path[64];

    if (mount("clutter", "/mnt", "tmpfs", 0, NULL))
        die("mount /mnt");
    for (int i = 1; i < count; i++) {
        snprintf(path, sizeof path, "/mnt/%d", i);
        if (mkdir(path, 0755) || mount("clutter", path, "tmpfs", 0, "size=4k"))
            die(path);
    }
}

static void furnish(const struct side *side)
{
    if (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL))
        die("a mount namespace of its own");
    if (side->mounts)
        clutter(side->mounts);
}

/* The side in a process of its own. Handing over costs a wake-up before every run: only where it must be. */
static void serve(struct side *side)
{
    int ask[2], answer[2];
    char turn;

    if (pipe2(ask, O_CLOEXEC) || pipe2(answer, O_CLOEXEC))
        die("pipe");
    side->ask = ask[1], side->answer = answer[0];
    if (fork()) {
        close(ask[0]), close(answer[1]);
        return;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(ask[1]), close(answer[0]);
    furnish(side);
    timed(side->commands);      /* warms the caches */
    while (read(ask[0], &turn, 1) == 1) {
        double microseconds = timed(side->commands);
        if (write(answer[1], &microseconds, sizeof microseconds) != sizeof microseconds)
            die("write");
    }
    exit(0);
}

static void take_turn(struct side *side, int round)
{
    if (!side->ask) {
        side->microseconds[round] = timed(side->commands);
        return;
    }
    if (write(side->ask, "", 1) != 1
        || read(side->answer, &side->microseconds[round], sizeof(double)) != sizeof(double))
        exit(1);                /* the side has said why */
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *values, int count)
{
    qsort(values, count, sizeof *values, ascending);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

/* Kibibytes that a process has to itself. Pages of the file are the page cache's: every process of the node shares them. */
static long anonymous(pid_t process)
{
    char path[64], line[128];
    long kib = -1;

    snprintf(path, sizeof path, "/proc/%d/smaps_rollup", process);
    FILE *file = fopen(path, "re");
    if (!file)
        die(path);
    while (kib < 0 && fgets(line, sizeof line, file))
        sscanf(line, "Anonymous: %ld kB", &kib);
    fclose(file);
    return kib;
}

/* The memory of one run, looked at when it is about to leave it. */
static long memory(char **command)
{
    char *environment[] = {NULL};
    int status;
    pid_t child = fork();

    if (child == 0) {
        dup2(open("/dev/null", O_RDWR), 1);
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        execve(command[0], command, environment);
        _exit(127);
    }
    if (waitpid(child, &status, 0) != child || !WIFSTOPPED(status)
        || ptrace(PTRACE_SETOPTIONS, child, NULL, PTRACE_O_TRACEEXIT | PTRACE_O_EXITKILL))
        die(command[0]);
    do {
        if (ptrace(PTRACE_CONT, child, NULL, WIFSTOPPED(status) && WSTOPSIG(status) != SIGTRAP ? WSTOPSIG(status) : 0)
            || waitpid(child, &status, 0) != child || !WIFSTOPPED(status))
            die(command[0]);
    } while (status >> 8 != (SIGTRAP | PTRACE_EVENT_EXIT << 8));
    long kib = anonymous(child);
    ptrace(PTRACE_DETACH, child, NULL, NULL);
    waitpid(child, &status, 0);
    return kib;
}

static void cost(int runs, char **command)
{
    static double faults[LIMIT];
    long most = 0;

    for (int i = 0; i < runs; i++) {
        faults[i] = run(command).ru_minflt;
        long kib = memory(command);
        if (kib > most)
            most = kib;
    }
    printf("%.0f %ld\n", median(faults, runs), most);
}

static void pairs(int runs, struct side sides[2])
{
    static double ratios[LIMIT];

    int apart = sides[0].mounts != sides[1].mounts;

    if (!apart)
        furnish(&sides[0]);
    for (int i = 0; i < 2; i++) {
        sides[i].microseconds = calloc(runs, sizeof(double));
        if (apart)
            serve(&sides[i]);
        else
            timed(sides[i].commands);   /* warms the caches */
    }
    for (int i = 0; i < runs; i++) {
        take_turn(&sides[i % 2], i);
        take_turn(&sides[1 - i % 2], i);
        ratios[i] = sides[0].microseconds[i] / sides[1].microseconds[i];
    }
    double ratio = median(ratios, runs);
    printf("%.0f %.0f %.2f\n", median(sides[0].microseconds, runs), median(sides[1].microseconds, runs), ratio);
}

/* The command with its number for each `@`. */
static char **numbered(char **command, int number)
{
    int count = 0;

    while (command[count])
        count++;
    char **words = calloc(count + 1, sizeof *words);
    for (int i = 0; i < count; i++) {
        char *from = command[i], *to = words[i] = malloc(strlen(from) * 6 + 1);
        for (; *from; from++)
            to += *from == '@' ? sprintf(to, "%d", number) : (*to = *from, 1);
        *to = 0;
    }
    return words;
}

/* All at once, each in a process that waits for it, so that the time of each is its own. */
static void crowd(int count, char **command)
{
    static double times[LIMIT];
    int answers[2];
    double start = now();

    if (pipe2(answers, O_CLOEXEC))
        die("pipe");
    for (int i = 0; i < count; i++)
        if (fork() == 0) {
            char **words = numbered(command, i);
            double begun = now();
            run(words);
            double taken = now() - begun;
            _exit(write(answers[1], &taken, sizeof taken) != sizeof taken);
        }
    close(answers[1]);
    for (int i = 0; i < count; i++)
        if (read(answers[0], &times[i], sizeof(double)) != sizeof(double))
            exit(1);            /* one of them has said why */
    double all = now() - start, middle = median(times, count);
    printf("%.1f %.1f %.1f\n", all / 1e3, middle / 1e3, times[count * 99 / 100] / 1e3);
}

int main(int count, char **words)
{
    int runs = count > 3 ? atoi(words[2]) : 0;
    int second = 4;

    if (runs < 1 || runs > LIMIT)
        goto usage;
    signal(SIGPIPE, SIG_IGN);
    if (!strcmp(words[1], "cost")) {
        cost(runs, words + 3);
        return 0;
    }
    if (!strcmp(words[1], "crowd")) {
        crowd(runs, words + 3);
        return 0;
    }
    while (second < count && strcmp(words[second], "--"))
        second++;
    if (strcmp(words[1], "pairs") || second + 2 >= count)
        goto usage;
    words[second] = NULL;
    pairs(runs, (struct side[]){
        {.mounts = atoi(words[3]), .commands = words + 4},
        {.mounts = atoi(words[second + 1]), .commands = words + second + 2},
    });
    return 0;
usage:
    fputs("usage: bench cost RUNS COMMAND... | bench crowd COUNT COMMAND... | bench pairs RUNS MOUNTS COMMAND... -- MOUNTS COMMAND...\n", stderr);
    return 2;
}
