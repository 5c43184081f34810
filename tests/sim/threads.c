/*
 * threads.c - coroutines in the place of threads, and virtual time.
 *
 * A blocked coroutine waits on an address: a mutex, a condition, a descriptor.
 * Woken ones become ready, and one of the ready ones is chosen by the dice. If
 * none is ready, time moves on to the next event or deadline.
 */
#include "sim.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#define TASKS 4096
#define STACK_LEN (256 * 1024)
#define WALL_START (INT64_C(1790000000) * SIM_S)
#define BOOT_START (INT64_C(5000) * SIM_S)

enum task_state { TASK_READY, TASK_WAITING, TASK_ENDED };

struct task {
    ucontext_t context;
    void *stack;
    enum task_state state;
    struct sim_process *process;
    const void *on;
    int64_t until; /* SIM_NEVER: no deadline */
    bool woken;
    int saved_errno;
    void *(*fn)(void *arg);
    void *arg, *result;
};

struct sim_process {
    char name[32];
    bool dead;
    int64_t paused_until;
    int64_t wall_offset, boot_offset;
    int64_t rate_from, rate_base; /* drift: local time since then */
    int per_mille;
};

struct event {
    int64_t at;
    uint64_t order;
    void (*fn)(void *arg);
    void *arg;
};

static struct task tasks[TASKS];
static int task_count;
static struct task *current;
static ucontext_t world;
static int64_t now_ns;
static uint64_t seed_state;
static struct event *events;
static size_t event_count, event_room;
static uint64_t event_order;
static bool story;

/* ---- dice ---------------------------------------------------------------- */

void
sim_seed(uint64_t seed)
{
    seed_state = seed;
    story = getenv("IDEM_SIM_STORY") != NULL;
}

uint64_t
sim_random(void)
{
    uint64_t z = seed_state += UINT64_C(0x9E3779B97F4A7C15);

    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

uint64_t
sim_roll(uint64_t n)
{
    return n ? sim_random() % n : 0;
}

bool
sim_once_in(uint64_t n)
{
    return n && sim_roll(n) == 0;
}

int64_t
sim_delay(int64_t usual)
{
    int64_t ns = usual / 2 + (int64_t)sim_roll((uint64_t)usual + 1);

    if (sim_once_in(20))
        ns *= 10;
    if (sim_once_in(200))
        ns *= 100;
    return ns;
}

/* ---- the world ----------------------------------------------------------- */

void
sim_tell(const char *format, ...)
{
    va_list args;

    if (!story)
        return;
    printf("%12.6f %-8s ", (double)now_ns / 1e9,
           current ? current->process->name : "world");
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    putchar('\n');
}

void
sim_fail(const char *format, ...)
{
    va_list args;

    printf("BROKEN at %.6f s: ", (double)now_ns / 1e9);
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    putchar('\n');
    fflush(stdout);
    _exit(3);
}

int64_t
sim_now(void)
{
    return now_ns;
}

static bool
event_before(const struct event *a, const struct event *b)
{
    return a->at != b->at ? a->at < b->at : a->order < b->order;
}

void
sim_after(int64_t ns, void (*fn)(void *arg), void *arg)
{
    size_t at = event_count++;

    if (event_count > event_room) {
        event_room = event_room ? 2 * event_room : 256;
        events = realloc(events, event_room * sizeof(*events));
        if (!events)
            abort();
    }
    events[at] =
        (struct event){now_ns + (ns > 0 ? ns : 0), event_order++, fn, arg};
    while (at > 0 && event_before(&events[at], &events[(at - 1) / 2])) {
        struct event swap = events[at];

        events[at] = events[(at - 1) / 2];
        events[(at - 1) / 2] = swap;
        at = (at - 1) / 2;
    }
}

static struct event
take_event(void)
{
    struct event first = events[0];
    size_t at = 0;

    events[0] = events[--event_count];
    for (;;) {
        size_t least = at, left = 2 * at + 1;
        struct event swap;

        for (size_t i = left; i < left + 2 && i < event_count; i++) {
            if (event_before(&events[i], &events[least]))
                least = i;
        }
        if (least == at)
            return first;
        swap = events[at];
        events[at] = events[least];
        events[least] = swap;
        at = least;
    }
}

static void
task_main(void)
{
    struct task *self = current;

    self->result = self->fn(self->arg);
    self->state = TASK_ENDED;
    sim_wake(self);
    swapcontext(&self->context, &world);
    abort();
}

static struct task *
new_task(struct sim_process *process, void *(*fn)(void *arg), void *arg)
{
    struct task *task = NULL;

    for (int i = 0; i < task_count && !task; i++) {
        if (tasks[i].state == TASK_ENDED && !tasks[i].process)
            task = &tasks[i];
    }
    if (!task) {
        if (task_count == TASKS)
            sim_fail("the simulated program has %d threads", TASKS);
        task = &tasks[task_count++];
    }
    if (!task->stack)
        task->stack = mmap(NULL, STACK_LEN, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (task->stack == MAP_FAILED)
        abort();
    task->state = TASK_READY;
    task->process = process;
    task->on = NULL;
    task->fn = fn;
    task->arg = arg;
    getcontext(&task->context);
    task->context.uc_stack.ss_sp = task->stack;
    task->context.uc_stack.ss_size = STACK_LEN;
    task->context.uc_link = NULL;
    makecontext(&task->context, task_main, 0);
    return task;
}

/* Back to the world; when this returns, it is this task's turn again. */
static void
give_way(void)
{
    struct task *self = current;

    self->saved_errno = errno;
    swapcontext(&self->context, &world);
    errno = self->saved_errno;
}

void
sim_yield(void)
{
    if (current && sim_once_in(3))
        give_way();
}

bool
sim_wait(const void *on, int64_t until)
{
    struct task *self = current;

    self->state = TASK_WAITING;
    self->on = on;
    self->until = until;
    self->woken = false;
    give_way();
    return self->woken;
}

void
sim_wake(const void *on)
{
    for (int i = 0; i < task_count; i++) {
        if (tasks[i].state == TASK_WAITING && tasks[i].on == on) {
            tasks[i].state = TASK_READY;
            tasks[i].woken = true;
        }
    }
}

/* One of them, by the dice. */
static void
wake_one(const void *on)
{
    struct task *chosen = NULL;
    uint64_t seen = 0;

    for (int i = 0; i < task_count; i++) {
        if (tasks[i].state == TASK_WAITING && tasks[i].on == on &&
            sim_once_in(++seen))
            chosen = &tasks[i];
    }
    if (chosen) {
        chosen->state = TASK_READY;
        chosen->woken = true;
    }
}

void
sim_sleep(int64_t ns)
{
    static const char nothing;

    sim_wait(&nothing, now_ns + (ns > 0 ? ns : 0));
}

static bool
may_run(const struct task *task)
{
    return !task->process->dead && task->process->paused_until <= now_ns;
}

/* The next time at which anything happens by itself; SIM_NEVER: none. */
static int64_t
next_time(void)
{
    int64_t at = event_count ? events[0].at : SIM_NEVER;

    for (int i = 0; i < task_count; i++) {
        const struct task *task = &tasks[i];
        int64_t when = task->state == TASK_WAITING ? task->until
                       : task->state == TASK_READY ? now_ns
                                                   : SIM_NEVER;

        if (task->state == TASK_ENDED || task->process->dead)
            continue;
        if (when < task->process->paused_until)
            when = task->process->paused_until;
        if (when < at)
            at = when;
    }
    return at;
}

static struct task *
choose(void)
{
    struct task *chosen = NULL;
    uint64_t seen = 0;

    for (int i = 0; i < task_count; i++) {
        struct task *task = &tasks[i];

        if (task->state == TASK_WAITING && task->until <= now_ns)
            task->state = TASK_READY;
        if (task->state == TASK_READY && may_run(task) && sim_once_in(++seen))
            chosen = task;
    }
    return chosen;
}

static bool
anybody_left(void)
{
    for (int i = 0; i < task_count; i++) {
        if (tasks[i].state != TASK_ENDED && !tasks[i].process->dead)
            return true;
    }
    return false;
}

bool
sim_run(void)
{
    for (;;) {
        struct task *task;

        while (event_count && events[0].at <= now_ns) {
            struct event event = take_event();

            event.fn(event.arg);
        }
        task = choose();
        if (task) {
            now_ns += (int64_t)sim_roll(4 * SIM_US);
            current = task;
            swapcontext(&world, &task->context);
            current = NULL;
            continue;
        }
        if (!anybody_left())
            return true;
        if (next_time() == SIM_NEVER)
            return false;
        if (next_time() > now_ns)
            now_ns = next_time();
    }
}

/* ---- processes ----------------------------------------------------------- */

struct start {
    void (*fn)(void *arg);
    void *arg;
};

static void *
start_process(void *arg)
{
    struct start start = *(struct start *)arg;

    free(arg);
    start.fn(start.arg);
    return NULL;
}

struct sim_process *
sim_spawn(const char *name, void (*fn)(void *arg), void *arg)
{
    struct sim_process *process = calloc(1, sizeof(*process));
    struct start *start = malloc(sizeof(*start));

    if (!process || !start)
        abort();
    snprintf(process->name, sizeof(process->name), "%s", name);
    process->rate_from = now_ns;
    process->rate_base = now_ns;
    *start = (struct start){fn, arg};
    new_task(process, start_process, start);
    return process;
}

void
sim_kill(struct sim_process *process)
{
    if (process->dead)
        return;
    sim_tell("kill -9 %s", process->name);
    process->dead = true;
}

bool
sim_alive(const struct sim_process *process)
{
    return process && !process->dead;
}

void
sim_pause(struct sim_process *process, int64_t ns)
{
    sim_tell("pause %s for %lld ms", process->name, (long long)(ns / SIM_MS));
    process->paused_until = now_ns + ns;
}

static int64_t
local_time(const struct sim_process *process)
{
    int64_t passed = now_ns - process->rate_from;

    if (passed < 0) /* it is frozen */
        passed = 0;
    return process->rate_base + passed + passed / 1000 * process->per_mille;
}

void
sim_freeze(struct sim_process *process, int64_t ns)
{
    sim_tell("freeze %s for %lld ms", process->name, (long long)(ns / SIM_MS));
    process->paused_until = now_ns + ns;
    process->rate_base = local_time(process);
    process->rate_from = now_ns + ns;
}

void
sim_same_clocks(struct sim_process *process, const struct sim_process *other)
{
    process->wall_offset = other->wall_offset;
    process->boot_offset = other->boot_offset;
    process->rate_from = other->rate_from;
    process->rate_base = other->rate_base;
    process->per_mille = other->per_mille;
}

void
sim_boot(struct sim_process *process, int64_t at)
{
    process->boot_offset = -at;
}

void
sim_set_clock(struct sim_process *process, int64_t by_ns)
{
    sim_tell("set the clock of %s by %lld s", process->name,
             (long long)(by_ns / SIM_S));
    process->wall_offset += by_ns;
}

int64_t
sim_clock_error(const struct sim_process *process)
{
    return local_time(process) + process->wall_offset - now_ns;
}

void
sim_drift(struct sim_process *process, int per_mille)
{
    process->rate_base = local_time(process);
    process->rate_from = now_ns;
    process->per_mille = per_mille;
}

struct sim_process *
sim_self(void)
{
    return current ? current->process : NULL;
}

const char *
sim_name(const struct sim_process *process)
{
    return process->name;
}

/* ---- what the simulated programs call ------------------------------------ */

#pragma GCC diagnostic ignored "-Wmissing-prototypes" /* of the __wrap_… */

/* A mutex is its owner's task, or 0; a condition remembers its clock. Both
 * start as zeros, as their static initialisers are. */

int
__wrap_pthread_mutex_init(pthread_mutex_t *mutex,
                          const pthread_mutexattr_t *attr)
{
    (void)attr;
    memset(mutex, 0, sizeof(*mutex));
    return 0;
}

int
__wrap_pthread_mutex_destroy(pthread_mutex_t *mutex)
{
    (void)mutex;
    return 0;
}

int
__wrap_pthread_mutex_lock(pthread_mutex_t *mutex)
{
    struct task **owner = (struct task **)mutex;

    if (!current)
        return 0;
    sim_yield();
    if (*owner == current)
        sim_fail("%s locks a mutex that it has", current->process->name);
    while (*owner)
        sim_wait(mutex, SIM_NEVER);
    *owner = current;
    return 0;
}

int
__wrap_pthread_mutex_trylock(pthread_mutex_t *mutex)
{
    struct task **owner = (struct task **)mutex;

    if (*owner)
        return EBUSY;
    *owner = current;
    return 0;
}

int
__wrap_pthread_mutex_unlock(pthread_mutex_t *mutex)
{
    if (!current)
        return 0;
    *(struct task **)mutex = NULL;
    sim_wake(mutex);
    sim_yield();
    return 0;
}

int
__wrap_pthread_cond_init(pthread_cond_t *cond, const pthread_condattr_t *attr)
{
    clockid_t clock = CLOCK_REALTIME;

    memset(cond, 0, sizeof(*cond));
    if (attr)
        pthread_condattr_getclock(attr, &clock);
    *(int *)cond = clock == CLOCK_MONOTONIC;
    return 0;
}

int
__wrap_pthread_cond_destroy(pthread_cond_t *cond)
{
    (void)cond;
    return 0;
}

static bool
cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex, int64_t until)
{
    bool woken;

    *(struct task **)mutex = NULL;
    sim_wake(mutex);
    if (sim_once_in(50)) /* a spurious wake-up */
        until = now_ns + (int64_t)sim_roll(SIM_MS);
    woken = sim_wait(cond, until);
    while (*(struct task **)mutex)
        sim_wait(mutex, SIM_NEVER);
    *(struct task **)mutex = current;
    return woken;
}

int
__wrap_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex)
{
    cond_wait(cond, mutex, SIM_NEVER);
    return 0;
}

/* The world's time at which this process's clock shows that time. */
static int64_t
world_time(const struct sim_process *process, int64_t local)
{
    int64_t left = local - local_time(process);

    return now_ns + left * 1000 / (1000 + process->per_mille);
}

int
__wrap_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex,
                              const struct timespec *deadline)
{
    const struct sim_process *process = current->process;
    int64_t local = deadline->tv_sec * SIM_S + deadline->tv_nsec;

    local -= *(int *)cond ? BOOT_START + process->boot_offset
                          : WALL_START + process->wall_offset;
    if (cond_wait(cond, mutex, world_time(process, local)))
        return 0;
    return local_time(process) >= local ? ETIMEDOUT : 0;
}

int
__wrap_pthread_cond_signal(pthread_cond_t *cond)
{
    wake_one(cond);
    sim_yield();
    return 0;
}

int
__wrap_pthread_cond_broadcast(pthread_cond_t *cond)
{
    sim_wake(cond);
    sim_yield();
    return 0;
}

int
__wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr,
                      void *(*fn)(void *), void *arg)
{
    (void)attr;
    *thread = (pthread_t)new_task(current->process, fn, arg);
    sim_yield();
    return 0;
}

int
__wrap_pthread_join(pthread_t thread, void **result)
{
    struct task *task = (struct task *)thread;

    while (task->state != TASK_ENDED)
        sim_wait(task, SIM_NEVER);
    if (result)
        *result = task->result;
    task->process = NULL; /* its place may be used again */
    return 0;
}

pthread_t
__wrap_pthread_self(void)
{
    return (pthread_t)current;
}

int
__wrap_pthread_setname_np(pthread_t thread, const char *name)
{
    (void)thread;
    (void)name;
    return 0;
}

int
__wrap_clock_gettime(clockid_t clock, struct timespec *time)
{
    static const struct sim_process nobody;
    const struct sim_process *process = current ? current->process : &nobody;
    int64_t ns = local_time(process);

    sim_yield();
    ns += clock == CLOCK_REALTIME ? WALL_START + process->wall_offset
                                  : BOOT_START + process->boot_offset;
    *time = (struct timespec){ns / SIM_S, ns % SIM_S};
    return 0;
}

int
__wrap_nanosleep(const struct timespec *time, struct timespec *left)
{
    (void)left;
    sim_sleep(time->tv_sec * SIM_S + time->tv_nsec);
    return 0;
}

int
__wrap_usleep(useconds_t us)
{
    sim_sleep((int64_t)us * SIM_US);
    return 0;
}

int
__wrap_sched_yield(void)
{
    sim_sleep(SIM_US);
    return 0;
}

void
__wrap_randombytes_buf(void *data, size_t len)
{
    uint8_t *bytes = data;

    for (size_t i = 0; i < len; i++)
        bytes[i] = (uint8_t)sim_random();
}

uint32_t
__wrap_randombytes_uniform(uint32_t bound)
{
    return (uint32_t)sim_roll(bound);
}

/* A futex, by which the engine wakes one caller. */
long
__wrap_syscall(long number, const int *word, int what, int value)
{
    if (number != SYS_futex)
        sim_fail("system call %ld is not simulated", number);
    if ((what & FUTEX_CMD_MASK) == FUTEX_WAKE) {
        sim_wake(word);
        sim_yield();
        return 1;
    }
    if (*(volatile const int *)word == value)
        sim_wait(word, SIM_NEVER);
    return 0;
}
