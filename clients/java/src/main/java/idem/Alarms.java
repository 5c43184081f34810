package idem;

import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.TimeUnit;

/**
 * Times at which something is due: the end of a reply's patience, the next renewal of a lease. Nearly all of them are cancelled before, so
 * setting one costs no system call: the thread that watches is woken only for what is due before it looks next. It ends when it found
 * nothing to watch twice in a row.
 */
final class Alarms {
    private static final long IDLE_NS = TimeUnit.SECONDS.toNanos(10);
    private static final long RETRY_NS = TimeUnit.MILLISECONDS.toNanos(100);
    private static final ThreadFactory DAEMONS = task -> {
        var thread = new Thread(task, "idem");
        thread.setDaemon(true);
        return thread;
    };

    final Set<Alarm> set = ConcurrentHashMap.newKeySet();
    private final ExecutorService pool = Executors.newCachedThreadPool(DAEMONS); // an action that is slow must not hold up the others
    private volatile long next = far(); // the watching thread looks again not later than this
    private Thread watching;

    private static long far() {
        return System.nanoTime() + Long.MAX_VALUE / 2;
    }

    /** Runs its action once at the time it was set to, unless it is cancelled before. It can be set again. */
    final class Alarm {
        private final Runnable action;
        private volatile long at; // on System.nanoTime()

        Alarm(Runnable action) {
            this.action = action;
        }

        void set(long when) {
            at = when;
            set.add(this);
            if (when - next < 0)
                wake();
        }

        /** False: it was not set, or its action has begun. */
        boolean cancel() {
            return set.remove(this);
        }
    }

    /** Run what may be slow, on a thread of its own. */
    void start(Runnable action) {
        pool.execute(action);
    }

    private synchronized void wake() {
        if (watching == null) {
            watching = DAEMONS.newThread(this::watch);
            watching.start();
        }
        notifyAll();
    }

    /** False: there is no thread for it now. It stays set: a lease that is lost has to be told. */
    private boolean ring(Alarm alarm) {
        try {
            start(alarm.action);
            return true;
        } catch (RuntimeException | OutOfMemoryError e) {
            set.add(alarm);
            return false;
        }
    }

    private synchronized void watch() {
        for (boolean idle = false;;) {
            next = far(); // first: whoever sets an alarm behind the loop's back sees this and wakes us
            long now = System.nanoTime();
            long soonest = now + IDLE_NS;
            for (var alarm : set) {
                long at = alarm.at - now > 0 || !alarm.cancel() || ring(alarm) ? alarm.at : now + RETRY_NS;
                soonest = at - now > 0 && at - soonest < 0 ? at : soonest;
            }
            if (idle && set.isEmpty()) {
                watching = null;
                return;
            }
            idle = set.isEmpty();
            next = soonest;
            try {
                wait((soonest - now) / 1_000_000 + 1);
            } catch (InterruptedException e) { // nobody has a reason to: look again
            }
        }
    }
}
