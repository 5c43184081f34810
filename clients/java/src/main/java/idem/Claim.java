package idem;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;

/** Work that is yours to do. */
public final class Claim {
    private static final ThreadLocal<Claim> CURRENT = new ThreadLocal<>();

    final Options options;
    private final String key;
    private final List<Runnable> listeners = new ArrayList<>();
    private long fence;
    private long endsAt; // of the lease, on System.nanoTime()
    private Alarms.Alarm alarm; // of the next renewal, or of the end of the lease; null: the lease is that of a transaction
    private Thread worker;
    private boolean working = true;
    private boolean lost;
    private boolean interrupted;

    Claim(String key, Options options) {
        this.key = key;
        this.options = options;
    }

    Claim fence(long value) {
        fence = value;
        return this;
    }

    /** From here on it is renewed. {@code asked}: its lease did not begin before. */
    synchronized void start(long asked, Alarms.Alarm alarm) {
        this.alarm = alarm;
        renewed(asked);
    }

    /** The claim of the work that runs on this thread, or null. */
    public static Claim current() {
        return CURRENT.get();
    }

    public String scope() {
        return options.scope;
    }

    public String key() {
        return key;
    }

    /** Grows with every execution of a key: hand it to what the work changes. */
    public long fence() {
        return fence;
    }

    /** The lease is over, or somebody else decided: stop working. */
    public synchronized boolean isLost() {
        return lost || working && alarm != null && System.nanoTime() - endsAt >= 0;
    }

    /** Throws LeaseLost if the claim has ended meanwhile. */
    public void check() {
        if (isLost())
            throw new IdemException.LeaseLost("the lease of " + this + " is over");
    }

    /** Run this when the lease is lost, or at once if it is. It runs on another thread and should be short. */
    public void onLost(Runnable listener) {
        synchronized (this) {
            if (!lost) {
                listeners.add(listener);
                return;
            }
        }
        listener.run();
    }

    @Override
    public String toString() {
        return options.scope + "/" + key;
    }

    synchronized Claim enter() {
        var outer = CURRENT.get();
        CURRENT.set(this);
        worker = Thread.currentThread();
        return outer;
    }

    /** The work has ended: from here on nobody is told of anything. An interrupt of ours that came too late is taken back. */
    void leave(Claim outer) {
        if (outer == null)
            CURRENT.remove();
        else
            CURRENT.set(outer);
        stop();
        if (interrupted)
            Thread.interrupted();
    }

    synchronized void stop() {
        working = false;
        if (alarm != null)
            alarm.cancel();
    }

    /** We have stopped the work, which may have been anywhere. */
    synchronized boolean isInterrupted() {
        return interrupted;
    }

    /** While a renewal is under way. False: there is nothing to renew any more. */
    synchronized boolean alarmAtEnd() {
        if (working && !lost)
            alarm.set(endsAt);
        return working && !lost;
    }

    synchronized Duration left(long now) {
        return Duration.ofNanos(Math.max(0, endsAt - now));
    }

    synchronized void renewed(long asked) {
        if (!working || lost)
            return;
        endsAt = asked + options.lease.toNanos();
        alarm.set(asked + options.lease.toNanos() / 3);
    }

    void lose() {
        List<Runnable> told;
        synchronized (this) {
            if (!working || lost)
                return;
            lost = true;
            alarm.cancel();
            told = new ArrayList<>(listeners);
            if (options.interrupt && worker != null) {
                interrupted = true;
                worker.interrupt();
            }
        }
        told.forEach(Runnable::run);
    }
}
