/*
 * sim.h - a world in one thread: processes, their threads, clocks and the
 * network, all driven by one seed on virtual time.
 *
 * The real engine runs in it unmodified, on a store that server.c simulates.
 * Its calls of pthread_*, clock_gettime and so on are bound to this world when
 * the program is linked (-Wl,--wrap; see threads.c). A thread of the simulated
 * program is a coroutine; the world decides at every such call who runs next.
 * The same seed gives the same run.
 */
#ifndef IDEM_SIM_H
#define IDEM_SIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SIM_US INT64_C(1000)
#define SIM_MS (1000 * SIM_US)
#define SIM_S (1000 * SIM_MS)
#define SIM_NEVER INT64_MAX

/* ---- dice ---------------------------------------------------------------- */

void sim_seed(uint64_t seed);
uint64_t sim_random(void);
/* 0 to n - 1. */
uint64_t sim_roll(uint64_t n);
/* True once in n. */
bool sim_once_in(uint64_t n);
/* A duration: mostly short, sometimes ten or a hundred times as long. */
int64_t sim_delay(int64_t usual);

/* ---- processes ----------------------------------------------------------- */

struct sim_process;

/* `name` is for messages. It starts with a thread that runs fn(arg). */
struct sim_process *sim_spawn(const char *name, void (*fn)(void *arg),
                              void *arg);
/* As kill -9: none of its threads runs again. */
void sim_kill(struct sim_process *process);
bool sim_alive(const struct sim_process *process);
/* As SIGSTOP, for so long. */
void sim_pause(struct sim_process *process, int64_t ns);
/* As when its machine sleeps without knowing: its clocks stand still, too. */
void sim_freeze(struct sim_process *process, int64_t ns);
/* On the same machine as that one: with its clocks. */
void sim_same_clocks(struct sim_process *process,
                     const struct sim_process *other);
/* Its machine was started then: the boot clock counts from there. */
void sim_boot(struct sim_process *process, int64_t at);
/* Set the wall clock of the machine that it runs on. */
void sim_set_clock(struct sim_process *process, int64_t by_ns);
/* By how much it is ahead. */
int64_t sim_clock_error(const struct sim_process *process);
/* From now on its clocks run at (1000 + per_mille) / 1000. */
void sim_drift(struct sim_process *process, int per_mille);
struct sim_process *sim_self(void);
const char *sim_name(const struct sim_process *process);

/* ---- time and events ----------------------------------------------------- */

int64_t sim_now(void);
/* Call fn(arg) then, outside of all processes; it must not wait. */
void sim_after(int64_t ns, void (*fn)(void *arg), void *arg);

/* ---- waiting, for code of the world itself ------------------------------- */

void sim_sleep(int64_t ns);
/* Somebody else may run. */
void sim_yield(void);
/* Wait until sim_wake(on); false: not before `until`. */
bool sim_wait(const void *on, int64_t until);
void sim_wake(const void *on);

/* Run until every process has ended or is dead; false: some wait for ever. */
bool sim_run(void);

/* ---- verdict ------------------------------------------------------------- */

/* A promise is broken: print it with the time, and end this run. */
void sim_fail(const char *format, ...)
    __attribute__((format(printf, 1, 2), noreturn));
/* A line of the story, printed with --story. */
void sim_tell(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
