import java.io.BufferedInputStream;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.atomic.AtomicLong;

import idem.IdemClient;
import idem.Options;

/**
 * java Bench idem|redis PORT SECONDS CALLERS: calls a second. Redis is asked on a plain socket a thread, without a client's overhead. Five seconds
 * before are not counted, for either: Java compiles what it runs often, and a service runs for days.
 */
public final class Bench {
    private static final long WARM_NS = 5_000_000_000L;

    interface Call {
        void run(String key) throws Exception;
    }

    /** A socket that sends SET and reads its reply. */
    static final class Redis {
        private final Socket socket;
        private final BufferedInputStream in;

        Redis(int port) throws Exception {
            socket = new Socket("127.0.0.1", port);
            socket.setTcpNoDelay(true);
            in = new BufferedInputStream(socket.getInputStream());
        }

        boolean set(String... args) throws Exception {
            var out = new StringBuilder("*" + args.length + "\r\n");
            for (var arg : args)
                out.append('$').append(arg.length()).append("\r\n").append(arg).append("\r\n");
            socket.getOutputStream().write(out.toString().getBytes(StandardCharsets.UTF_8));
            boolean good = in.read() == '+';
            while (in.read() != '\n') { // the rest of the line
            }
            return good;
        }
    }

    public static void main(String[] args) throws Exception {
        int port = Integer.parseInt(args[1]);
        int callers = Integer.parseInt(args[3]);
        var client = IdemClient.open("idem://127.0.0.1:" + port, Options.strict().scope("bench"));
        var name = UUID.randomUUID().toString();
        var count = new AtomicLong();
        var threads = new Thread[callers];
        long begin = System.nanoTime() + WARM_NS;
        long end = begin + (long) (Double.parseDouble(args[2]) * 1e9);
        for (int i = 0; i < callers; i++) {
            int caller = i;
            threads[i] = new Thread(() -> {
                try {
                    Call call;
                    if (args[0].equals("idem")) {
                        call = key -> client.once(key, Map.class, () -> Map.of("order", 7));
                    } else {
                        var redis = new Redis(port);
                        call = key -> {
                            if (redis.set("SET", key, "claimed", "NX", "PX", "86400000"))
                                redis.set("SET", key, "{\"order\":7}", "PX", "86400000");
                        };
                    }
                    for (int n = 0; System.nanoTime() < end; n++) {
                        call.run(name + "-" + caller + "-" + n);
                        if (System.nanoTime() > begin)
                            count.incrementAndGet();
                    }
                } catch (Exception e) {
                    e.printStackTrace();
                    System.exit(1);
                }
            });
            threads[i].start();
        }
        for (var thread : threads)
            thread.join();
        System.out.println(count.get() * 1e9 / (System.nanoTime() - begin));
    }
}
