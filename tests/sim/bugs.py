#!/usr/bin/python3
"""Plant bugs one at a time and see that the simulator finds each: tests/sim/bugs.py [NAME...]

A bug is a change of a few words in a file of the source. The changed file is compiled apart and linked in front of the library; the tree stays as
it is. A text that is no longer in the file is an error, so the list stays true.
"""
import os
import re
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.join(ROOT, "build/tests/sim")
SECONDS = float(os.environ.get("IDEM_BUG_SECONDS", "60"))

STEP = "src/record/step.c"
COMMIT = "src/engine/commit.c"
TIME = "src/engine/time.c"
SERVER = "tests/sim/server.c"
BATCH = "src/store/journal/journal_batch.c"
RECOVER = "src/store/journal/recover.c"
SEGMENT = "src/store/journal/segment.c"
FORMAT = "src/store/journal/format.c"
FLIGHT = "src/remote/flight.c"
ANSWER = "src/remote/flight_answer.c"
REMOTE = "src/remote/remote.c"
CALL = "src/serve/resp/call.c"
EPOCH = "src/engine/epoch.c"
GROUP = "src/engine/group.c"
BACKUP = "tests/sim/backup.c"

# name, what it breaks, [(file, text, text instead)]; "WORLD/name": only that world is run
BUGS = [
    ("old-fence-finishes", "FINISH does not compare the fence",
     [(STEP, "if (!r || r->fence != op->fence)\n        return IDEM_V_STALE;", "if (!r)\n        return IDEM_V_STALE;"),
      (STEP, "return r->state == IDEM_STATE_EXECUTING && r->fence == op->fence;", "return r->state == IDEM_STATE_EXECUTING || (r && op && 0);")]),
    ("strict-taken-over", "strict work is started again when its lease is over",
     [(STEP, "r->mode == IDEM_LOOSE && idem__lease_over(r, now)", "idem__lease_over(r, now)")]),
    ("executing-expires", "work in progress expires",
     [(STEP, "return record->state != IDEM_STATE_EXECUTING && record->expires != 0 &&", "return record->expires != 0 &&")]),
    ("fence-from-clock-alone", "a fence comes from the clock alone",
     [(STEP, "return fence > now->late_us ? fence : now->late_us;", "return fence == 0 ? fence : now->late_us;"),
      (TIME, "late_us > 0 && (uint64_t)late_us > time->fence_floor_us", "late_us > 0")]),
    ("expires-by-late-time", "a record expires by the upper bound of the time",
     [(STEP, "record->expires <= now->early_ms", "record->expires <= now->late_ms")]),
    ("expires-at-half-time", "a result is kept for half of its TTL",
     [(STEP, "now->behind_ms + ttl_ms;", "now->behind_ms + ttl_ms / 2;")]),
    ("clock-is-believed", "the judged time follows a clock that is set forward",
     [(TIME, "        early_us = most;\n", "")]),
    ("single/kept-from-a-clock-set-back", "a record that is written under a clock that was set back expires early",
     [(TIME, "time->pace_us > late_us ? (time->pace_us - late_us) / 1000 : 0;", "0;")]),
    ("sweep-by-the-wall-clock", "records are swept by the store's clock, also under an alarm",
     [(TIME, "if (time->judged_at_us == 0 || (!type->local && atomic_load(&time->alarm)))\n        return 0;",
       "early_us = time->sample_us + INT64_C(60000000);\n    if (time->judged_at_us == 0)\n        return 0;")]),
    ("lost-is-stored", "a swap whose answer was lost counts as stored",
     [(COMMIT, "    case IDEM_SWAP_LOST:\n        break;", "    case IDEM_SWAP_LOST:\n        stored(engine, group);\n        return false;")]),
    ("not-stored-after-lost", "not stored the second time counts as never stored",
     [(COMMIT, "        if (group->losses > 0)\n            return lost(engine, group, err);\n        not_stored(", "        not_stored(")]),
    ("take-over-keeps-fence", "a worker that takes over a request gets the fence of the previous worker",
     [(STEP, "    start(next, r, r, op, now);\n    next->created = r->created;", "    start(next, r, r, op, now);\n    next->fence = r->fence;\n    next->created = r->created;")]),
    ("second-outcome", "SETTLE keeps the fence, and a FINISH after it is acknowledged",
     [(STEP, "        *next = *r;\n        next->fence = next_fence(r, now);\n        if (op->subject.len > 0)", "        *next = *r;\n        if (op->subject.len > 0)"),
      (STEP, "return same_outcome(r, op) ? IDEM_V_OK : IDEM_V_FINISHED;", "return IDEM_V_OK;")]),
    ("finished-starts-again", "a request that was taken over once starts again after its result",
     [(STEP, "return r->flags & IDEM_FLAG_REDEEMED ? IDEM_V_DUPLICATE : IDEM_V_REPLAY;",
       "return r->attempt > 1 ? start(next, r, r, op, now) : IDEM_V_REPLAY;")]),
    ("refused-is-stored", "a swap that was refused counts as stored",
     [(COMMIT, "            refused(engine, group, swap);", "            stored(engine, group);")]),
    ("no-wait-for-the-replica", "a write is answered before the replica has it",
     [(SERVER, "server->kind == SIM_REPLICA && server->copied < ask->barrier", "server->kind == SIM_REPLICA && server->copied + 3 < ask->barrier")]),
    ("replica/reads-pass-the-replica", "a read is answered before the replica has the record that was read",
     [(SERVER, "    ask->barrier = server->written;", "    ask->barrier = ask->what == ASK_SWAP ? server->written : 0;")]),
    ("told-before-stored", "a client gets the answer to a change before the store has answered",
     [(COMMIT, "    case IDEM_SWAP_LOST:\n        break;\n    }\n    return lost(engine, group, err);", "    case IDEM_SWAP_LOST:\n        break;\n    }\n    return false;"),
      (COMMIT, "    status = engine->store->type->swap(engine->store, batch->swaps + first,\n                                       count, &batch->arena, &err);",
       "    for (size_t i = first; i < first + count; i++)\n        if (batch->swaps[i].expected && batch->swapping[i]->losses == 0)\n            batch->swapping[i]->losses = 1, stored(engine, batch->swapping[i]);\n"
       "    status = engine->store->type->swap(engine->store, batch->swaps + first, count, &batch->arena, &err);\n    for (size_t i = first; i < first + count; i++)\n"
       "        if (batch->swaps[i].expected)\n            batch->swaps[i].outcome = IDEM_SWAP_LOST;")]),
    ("settle-while-busy", "SETTLE does not wait for the end of a lease",
     [(STEP, "if (!op->outcome || !idem__lease_over(r, now))\n            return busy_or_doubt(r, now);", "if (!op->outcome)\n            return busy_or_doubt(r, now);")]),
    ("lease-by-late-time", "a lease ends by the upper bound of the time",
     [(STEP, "record->lease_until <= now->early_ms &&\n           record->lease_until - record->updated <= now->up_ms;", "record->lease_until <= now->late_ms;")]),
    ("journal/told-before-synced", "a batch is acknowledged before fdatasync",
     [(BATCH, "    if (!error)\n        error = idem__io_datasync(self->io, segment->fd);\n    if (error) {", "    if (error) {")]),
    ("journal/checksum-not-checked", "the journal does not compare entries that it reads with their checksums",
     [(FORMAT, "    if (idem__get64(in) !=\n        XXH3_64bits_withSeed(in + 8, (size_t)(*need - 8), salt))\n        return ENTRY_BAD;\n", "")]),
    ("journal/second-sync-is-believed", "the journal repeats a failed sync and believes the second one",
     [(BATCH, "        error = idem__io_datasync(self->io, segment->fd);\n    if (error) {", "        error = idem__io_datasync(self->io, segment->fd);\n    if (error)\n        error = idem__io_datasync(self->io, segment->fd);\n    if (error) {")]),
    ("journal/tail-not-synced", "recovery answers from entries that a killed process left before they are durable",
     [(RECOVER, "        error = idem__io_sync(self->io, newest->fd);\n        if (!error)\n            error = idem__io_sync(self->io, self->dir_fd);", "        error = 0;")]),
    ("journal/tail-read-from-memory", "after a failed sync, recovery reads bytes that are only in the page cache",
     [(RECOVER, "        (void)posix_fadvise(newest->fd, 0, 0, POSIX_FADV_DONTNEED);\n", "")]),
    ("journal/tail-not-cut", "recovery counts a torn batch's bytes as the segment's, and writes behind them",
     [(RECOVER, "    segment->end = walk.at;\n", "    segment->end = newest ? segment->file_len : walk.at;\n")]),
    ("journal/name-not-synced", "a new segment's name is not made durable",
     [(SEGMENT, "    if (!error)\n        error = idem__io_sync(self->io, self->dir_fd);\n    if (error)\n        idem__journal_poison", "    if (error)\n        idem__journal_poison")]),
    ("journal/wall-clock-is-believed", "after a power cut the journal takes its time from the wall clock without a check",
     [("src/store/journal/clock.c", "ahead_us <= (synced ? AHEAD_SYNCED_US : AHEAD_US)) {", "ahead_us >= 0) {")]),
    ("journal/held-time-is-forgotten", "a record that is stored while the journal's time is behind expires early after the time is corrected",
     [("src/store/journal/clock.c", "what == HELD ? AHEAD_SYNCED_US : 0;", "0;")]),
    ("journal/lost-is-not-stored", "a batch whose sync failed is reported as not stored, and stays in the log",
     [(BATCH, "        tell_all(self, IDEM_SWAP_LOST);\n", "        self->poisoned = false;\n        segment->end += self->batch.len;\n        self->next_batch++;\n        tell_all(self, IDEM_SWAP_NOT_STORED);\n")]),
    ("remote/one-nonce-for-all", "every BEGIN of a client has the same nonce",
     [(FLIGHT, "    command->op = job->op;\n", "    command->op = job->op;\n    if (job->op.nonce)\n        command->op.nonce = (const uint8_t *)\"sixteen bytes...\";\n")]),
    ("remote/sent-again-without-nonce", "a BEGIN that is sent again has no nonce, and its busy counts as an answer",
     [(FLIGHT, "        write_job(engine, &command, idem__flight_job(flight));", "{\n        write_job(engine, &command, idem__flight_job(flight));\n        if (flight->resent && command.op.verb == IDEM_BEGIN)\n            command.op.nonce = NULL;\n    }")]),
    ("remote/reply-to-the-wrong-tag", "a reply is given to the oldest operation",
     [(ANSWER, "    struct flight *flight = link ? IDEM__OF(link, struct flight, link) : NULL;", "    struct flight *flight = link ? remote->first : NULL;")]),
    ("remote/stale-finish-is-ok", "a FINISH that was sent twice and is stale counts as done",
     [(ANSWER, "    if (answer->verdict == IDEM_V_STALE)\n        return op->verb == IDEM_RENEW;", "    if (answer->verdict == IDEM_V_STALE && op->verb == IDEM_FINISH)\n        answer->verdict = IDEM_V_OK;\n    if (answer->verdict == IDEM_V_STALE)\n        return op->verb == IDEM_RENEW;")]),
    ("remote/lost-is-unavailable", "an operation that was sent and not answered in time is reported as not stored",
     [(REMOTE, "        } else if (flight->resent || flight->sent_us) {", "        } else if (flight->resent && flight->sent_us && 0) {")]),
    ("remote/sent-is-forgotten", "operations that were sent on a connection that broke count as not sent",
     [(REMOTE, "        flight->resent = idem__flight_was_sent(remote, flight);", "        flight->resent = false;")]),
    ("remote/given-back-though-held", "the server releases a claim although its client may send the BEGIN again",
     [(CALL, "call->returns = op->verb == IDEM_BEGIN && !op->nonce;", "call->returns = op->verb == IDEM_BEGIN;")]),
    ("remote/told-before-synced", "the server's journal acknowledges before fdatasync",
     [(BATCH, "    if (!error)\n        error = idem__io_datasync(self->io, segment->fd);\n    if (error) {", "    if (error) {")]),
    ("backup/no-epoch-file", "the engines have no epoch-file",
     [(BACKUP, ".epoch_file = file,", ".epoch_file = NULL,"), (BACKUP, "is_settled() && (marks_are_lost() ||", "((void)is_settled, 1 ||"),
      (BACKUP, "    truth_may_start = may_start;\n", "")]),
    ("backup/mark-not-compared", "the mark that is found is not compared with the last one",
     [(EPOCH, "(found.state == IDEM_STATE_ABSENT ||\n                                       found.fence < epoch->mark.fence)", "found.state == IDEM_STATE_ABSENT")]),
    ("backup/mark-not-in-the-file", "the file keeps the first mark",
     [(EPOCH, "    if (pwrite(epoch->fd, line, (size_t)len, 0) == len || epoch->file_failed)", "    if (epoch->mark.rev == 0 || lseek(epoch->fd, 0, SEEK_END) > 0 ||\n        pwrite(epoch->fd, line, (size_t)len, 0) == len || epoch->file_failed)")]),
    ("backup/file-before-the-store", "a mark is in the file before it is durable",
     [(EPOCH, "    swap.outcome = IDEM_SWAP_LOST;\n    epoch->err", "    struct idem__mark last = epoch->mark;\n    keep_mark(engine, &record);\n    epoch->mark = last;\n    swap.outcome = IDEM_SWAP_LOST;\n    epoch->err")]),
    ("backup/new-connection-not-checked", "the mark is not compared after a new connection",
     [(EPOCH, "(now || epoch->unsure || epoch->link != engine->store->link ||", "((now && 0) || engine->epoch.mark.rev == 0 ||")]),
    ("backup/write-passes-the-check", "what is written through a new connection is reported before the mark is compared",
     [(COMMIT, "    if (!was_back && engine->store->link != engine->epoch.link &&", "    if (was_back && engine->store->link != engine->epoch.link &&")]),
    ("backup/newest-not-looked-for", "the newest record is not looked for",
     [(EPOCH, "    if (newest->fence == 0 ||\n", "    if (newest->fence != 1 ||\n")]),
    ("backup/renewal-hides-a-claim", "a renewal counts as the newest record",
     [(EPOCH, "before->state == IDEM_STATE_EXECUTING && before->fence == record->fence)", "before->fence == UINT64_MAX)")]),
    ("backup/loss-forgotten-by-a-restart", "a loss of less than the last second is forgotten by a restart",
     [(EPOCH, "                stay_back(engine);\n", "                (void)stay_back;\n")]),
    ("backup/empty-store-is-a-new-one", "after a loss was noticed, a restart takes an empty store for a new one",
     [(EPOCH, "engine->epoch.mark.rev = idem__new_rev();", "engine->epoch.mark.rev = 0;"), (EPOCH, "mark.fence != 0 && mark.rev == 0", "0")]),
    ("backup/own-claim-starts", "a claim that was written to the older store before the loss was noticed starts",
     [(GROUP, "(verdict == IDEM_V_STARTED || verdict == IDEM_V_REDEEMED) &&", "0 && verdict == IDEM_V_STARTED &&")]),
    ("backup/strict-work-not-refused", "a strict BEGIN is not refused after the loss was noticed",
     [(EPOCH, "return next->mode == IDEM_STRICT || op->type == IDEM_TYPE_TOKEN;", "return op->type == IDEM_TYPE_TOKEN;")]),
    ("backup/claims-are-forgotten", "claims of the lost time do not come into doubt after the loss is accepted",
     [(GROUP, "    if (group->withheld || (accepted && (engine->epoch.lost_to == 0 ||", "    if (1 || (accepted && (engine->epoch.lost_to == 0 ||")]),
    ("backup/accepted-loss-comes-back", "an accepted loss is noticed again",
     [(EPOCH, "    epoch->mark.rev = epoch->found_rev;\n    if (epoch->lost_to", "    if (epoch->lost_to")]),
]


def make_variable(name):
    out = subprocess.run(["make", "-s", "print-simulate"], cwd=ROOT, text=True, stdout=subprocess.PIPE, check=True).stdout
    return re.search(r"^%s: (.*)$" % name, out, re.M).group(1).split()


def change(path, edits):
    with open(os.path.join(ROOT, path)) as f:
        text = f.read()
    for old, new in edits:
        if text.count(old) != 1:
            sys.exit("bugs: %s has %d times the text\n%s\nwrite the bug for the code as it is now" % (path, text.count(old), old))
        text = text.replace(old, new)
    return text


def plant(name, edits):
    """The simulator with this bug in it."""
    where = os.path.join(BUILD, "bugs", name)
    os.makedirs(where, exist_ok=True)
    compile_, link = make_variable("compile"), make_variable("link")
    objects = []
    for path in sorted({edit[0] for edit in edits}):
        source = os.path.join(where, os.path.basename(path))
        with open(source, "w") as f:
            f.write(change(path, [edit[1:] for edit in edits if edit[0] == path]))
        objects.append(source[:-1] + "o")
        subprocess.run([*compile_, "-w", "-iquote", os.path.dirname(path), "-c", source, "-o", objects[-1]], cwd=ROOT, check=True)
    program = os.path.join(where, "simulate")
    replaced = tuple(edit[0][:-1] + "o" for edit in edits)
    own = [o for o in make_variable("objects") if not o.endswith(replaced)]
    subprocess.run([link[0], "-o", program, *objects, *own, *link[1:]], cwd=ROOT, check=True)
    return program


def main():
    wanted = sys.argv[1:]
    missed = count = 0
    for name, what, edits in BUGS:  # all of them must fit the source, also those that are not run now
        for path in {edit[0] for edit in edits}:
            change(path, [edit[1:] for edit in edits if edit[0] == path])
    known = {word for name, _, _ in BUGS for word in (name, *name.split("/"))}
    if set(wanted) - known:
        sys.exit("bugs: there is no bug or world %s; the bugs are:\n%s" % (", ".join(set(wanted) - known), "\n".join(b[0] for b in BUGS)))
    for name, what, edits in BUGS:
        world, _, short = name.rpartition("/")
        if wanted and name not in wanted and short not in wanted and world not in wanted:
            continue
        count += 1
        program = plant(short, edits)
        start = time.monotonic()
        done = subprocess.run([program, "--seconds", str(SECONDS), "--seed", "1", "--quick", *(["--world", world] if world else [])],
                              text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        found = re.search(r"BROKEN.*", done.stdout)
        missed += not found
        print("%-36s %6.1f s  %s: %s" % (name, time.monotonic() - start, "found" if found else "NOT FOUND", found.group() if found else what), flush=True)
    print("%d planted bugs, %d not found" % (count, missed))
    return 1 if missed else 0


sys.exit(main())
