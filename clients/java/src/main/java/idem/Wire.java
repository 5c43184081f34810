package idem;

import java.io.ByteArrayOutputStream;
import java.io.Closeable;
import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetSocketAddress;
import java.net.ProtocolFamily;
import java.net.Socket;
import java.net.SocketAddress;
import java.net.SocketTimeoutException;
import java.net.StandardProtocolFamily;
import java.net.URLDecoder;
import java.nio.channels.Channels;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** The Redis protocol as idem speaks it, and a pool of connections that speak it. A connection serves one call at a time. */
final class Wire {
    static final String STRANGE = "unexpected reply: is this an idem server?";
    static final long REPLY_NS = TimeUnit.SECONDS.toNanos(5);
    private static final long CONNECT_NS = TimeUnit.SECONDS.toNanos(2);
    private static final long TRUSTED_NS = TimeUnit.SECONDS.toNanos(1); // after so long without use a connection is asked whether it is alive
    private static final int IDLE_MAX = 16;
    private static final int LONGEST = 512 << 20;
    private static final List<String> PING = List.of("PING");
    private static final Pattern URL = Pattern.compile(
            "(?s)(?:idem\\+unix:(/?[^/?][^?]*)|(idems?)://(?:([^?]*)@)?(\\[[^\\]?]+\\]|[^\\[\\]:/?@,]+)(?::(\\d{1,5}))?(?:/[^?@]*)?)(?:\\?(.*))?");

    /** The connection failed. {@code sent}: the server may have got the command. */
    static final class Broken extends Exception {
        private static final long serialVersionUID = 1;
        final boolean sent;

        Broken(Exception cause, boolean sent, String where) {
            super(where + (cause.getMessage() == null ? cause.toString() : cause.getMessage()), cause);
            this.sent = sent;
        }
    }

    private final Alarms alarms;
    private final ArrayDeque<Connection> idle = new ArrayDeque<>();
    private String path;
    private String host;
    private int port;
    private Tls tls;
    private List<String> auth;
    private FutureTask<InetSocketAddress> lookUp;
    private boolean closed;

    /** unix:PATH, HOST:PORT, idem://[name:secret@]host:port, idems://…?ca=FILE&cert=FILE&key=FILE or idem+unix:/path; null: IDEM_SERVER. */
    Wire(String url, Alarms alarms) {
        this.alarms = alarms;
        var named = System.getenv().getOrDefault("IDEM_SERVER", "");
        var parts = parts(url != null ? url : named.isEmpty() ? "idem://127.0.0.1:6390" : named);
        path = parts.group(1);
        if (path == null) {
            host = parts.group(4).replaceAll("[\\[\\]]", "");
            port = parts.group(5) == null ? 6390 : Integer.parseInt(parts.group(5));
        }
        options("idems".equals(parts.group(2)), parts.group(6));
        var user = parts.group(3);
        var secret = user == null || user.isEmpty() ? System.getenv().getOrDefault("IDEM_AUTH", "") : decoded(user);
        if (!secret.isEmpty())
            auth = List.of(("AUTH:" + secret).split(":", 3));
    }

    /** What the command line takes for --server: unix:PATH, /PATH, HOST:PORT, or a URL, whose parts these are. */
    private static Matcher parts(String text) {
        var url = text;
        if (text.startsWith("unix:") || text.startsWith("/"))
            url = "idem+unix:" + text.replaceFirst("^unix:", "");
        else if (!text.contains("://") && !text.startsWith("idem+unix:") && text.matches("([^?]*@)?[^/?@]*:\\d+"))
            url = "idem://" + (text.matches(":[^@]*") ? "127.0.0.1" : "") + text;
        var parts = URL.matcher(url);
        if (parts.matches() && (parts.group(5) == null || Integer.parseInt(parts.group(5)) > 0 && Integer.parseInt(parts.group(5)) < 65536))
            return parts;
        throw new IllegalArgumentException("\"" + text.substring(text.lastIndexOf('@') + 1) + "\" is " // without the secret
                + (text.startsWith("http") ? "the HTTP address of a server; clients need its socket or its RESP port" : "not an address")
                + ": give unix:PATH, HOST:PORT or idems://HOST:PORT");
    }

    private static String decoded(String text) {
        return URLDecoder.decode(text.replace("+", "%2B"), StandardCharsets.UTF_8);
    }

    private void options(boolean encrypted, String query) {
        var files = new HashMap<String, String>();
        for (var option : query == null || query.isEmpty() ? new String[0] : query.split("&")) {
            var pair = (option + "=").split("=", 3);
            if (!encrypted || !Set.of("ca", "cert", "key").contains(pair[0]) || pair[1].isEmpty())
                throw new IllegalArgumentException("\"" + option + "\" is not an option of an address: idems:// has ca, cert and key");
            files.put(pair[0], decoded(pair[1]));
        }
        if (encrypted)
            tls = new Tls(files);
    }

    /** One command and the values of its reply: text, byte[], Long, List or null. Waits until that System.nanoTime(). */
    List<?> call(List<?> args, long end) throws Broken {
        Connection connection;
        try {
            connection = take(end);
        } catch (IOException e) {
            throw new Broken(e, false, (path != null ? path : host + ":" + port) + ": ");
        }
        Object answer;
        try {
            answer = connection.call(args, end);
        } catch (IOException e) {
            drop(); // the others of the pool are of the same age and likely broken too
            throw new Broken(e, true, "");
        }
        synchronized (idle) {
            if (idle.size() < IDLE_MAX && !closed)
                idle.push(connection);
            else
                connection.close();
        }
        if (answer instanceof IdemException.Refused)
            throw (IdemException.Refused) answer;
        return answer instanceof List ? (List<?>) answer : List.of(answer);
    }

    private Connection poll() {
        synchronized (idle) {
            return idle.poll();
        }
    }

    /** A connection that has answered not long ago. A command is sent to no other, for what was sent may have been carried out. */
    private Connection take(long end) throws IOException {
        for (Connection c; (c = poll()) != null;) {
            if (System.nanoTime() - c.answered < TRUSTED_NS)
                return c;
            try {
                c.call(PING, soon(end));
                return c;
            } catch (IOException e) {
                drop();
            }
        }
        var made = new Connection(soon(end));
        var answer = made.call(auth == null ? PING : auth, Math.min(end - System.nanoTime(), REPLY_NS) + System.nanoTime());
        if (!(answer instanceof IdemException.Refused))
            return made;
        made.close();
        var refused = (IdemException.Refused) answer;
        if (refused.getMessage().contains("max number of clients")) // it may have room for us soon
            throw new IOException(refused.getMessage());
        throw refused;
    }

    /** The system's look-up of a name has no time limit: a thread of its own does it, for all callers that wait meanwhile. */
    private InetSocketAddress found(long end) throws IOException {
        if (host.indexOf(':') >= 0 || host.matches("[0-9.]+"))
            return new InetSocketAddress(host, port);
        try {
            FutureTask<InetSocketAddress> asked;
            synchronized (idle) {
                asked = lookUp == null || lookUp.isDone() ? new FutureTask<>(() -> new InetSocketAddress(host, port)) : lookUp;
                if (asked != lookUp)
                    alarms.start(asked);
                lookUp = asked;
            }
            return asked.get(end - System.nanoTime(), TimeUnit.NANOSECONDS);
        } catch (TimeoutException e) {
            throw new SocketTimeoutException("looking up " + host + " took too long");
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new IOException("interrupted while looking up " + host, e);
        } catch (ExecutionException | OutOfMemoryError e) { // the second one: there is no thread for it now
            throw new IOException(e);
        }
    }

    private static long soon(long end) {
        long now = System.nanoTime();
        return now + Math.min(end - now, CONNECT_NS);
    }

    private void drop() {
        for (Connection c; (c = poll()) != null;)
            c.close();
    }

    void close() {
        synchronized (idle) {
            closed = true;
        }
        drop();
    }

    private static byte[] encoded(List<?> args) {
        var out = new ByteArrayOutputStream(256);
        head(out, '*', args.size());
        for (var arg : args) {
            var bytes = arg instanceof byte[] ? (byte[]) arg : Json.utf8(arg.toString());
            head(out, '$', bytes.length);
            out.write(bytes, 0, bytes.length);
            out.write('\r');
            out.write('\n');
        }
        return out.toByteArray();
    }

    private static void head(ByteArrayOutputStream out, char mark, int number) {
        out.write(mark);
        out.writeBytes(Json.utf8(Integer.toString(number)));
        out.write('\r');
        out.write('\n');
    }

    /**
     * The caller's own thread writes and reads. No read has a time limit of its own, which would cost Java two more system calls a reply:
     * an alarm closes the socket instead.
     */
    private final class Connection {
        private final byte[] buffer = new byte[8192];
        private int from;
        private int to;
        private final Closeable socket;
        private final InputStream in;
        private final OutputStream out;
        private final Alarms.Alarm alarm = alarms.new Alarm(this::close);
        private long answered;

        Connection(long end) throws IOException {
            var channel = path == null ? null : unix();
            var plain = path == null ? new Socket() : null;
            socket = path == null ? plain : channel;
            alarm.set(end);
            try {
                if (channel != null) {
                    channel.connect(unixAddress());
                    in = Channels.newInputStream(channel);
                    out = Channels.newOutputStream(channel);
                } else {
                    plain.setTcpNoDelay(true);
                    plain.connect(found(end));
                    var used = tls == null ? plain : tls.over(plain, host, port);
                    in = used.getInputStream();
                    out = used.getOutputStream();
                }
                if (!alarm.cancel())
                    throw new IOException();
            } catch (IOException | RuntimeException e) {
                throw failed(e);
            }
        }

        /** Closed; what to tell, which is that it took too long if the alarm has closed it. */
        private IOException failed(Exception e) {
            boolean late = !alarm.cancel();
            close();
            return late ? new SocketTimeoutException("no reply in time") : e instanceof IOException ? (IOException) e : new IOException(e);
        }

        void close() {
            try {
                socket.close();
            } catch (IOException e) { // nothing is left to be saved
            }
        }

        Object call(List<?> args, long end) throws IOException {
            alarm.set(end);
            try {
                out.write(encoded(args));
                var answer = reply();
                if (!alarm.cancel())
                    throw new IOException();
                answered = System.nanoTime();
                return answer;
            } catch (IOException | RuntimeException e) {
                throw failed(e);
            }
        }

        private int next() throws IOException {
            if (from == to) {
                from = 0;
                to = Math.max(0, in.read(buffer));
                if (to == 0)
                    throw new EOFException("the server closed the connection");
            }
            return buffer[from++];
        }

        private byte[] exactly(int length) throws IOException {
            var bytes = new byte[length];
            for (int have = 0; have < length;) {
                bytes[have++] = (byte) next();
                int n = Math.min(to - from, length - have);
                System.arraycopy(buffer, from, bytes, have, n);
                from += n;
                have += n;
            }
            if (next() != '\r' || next() != '\n')
                throw unexpected();
            return bytes;
        }

        private String line() throws IOException {
            var line = new ByteArrayOutputStream(32);
            for (int c; (c = next()) != '\r'; line.write(c))
                if (line.size() > 65536)
                    throw unexpected();
            next();
            return line.toString(StandardCharsets.UTF_8);
        }

        private IOException unexpected() {
            return new IOException(STRANGE);
        }

        private Object reply() throws IOException {
            int mark = next();
            var text = line();
            switch (mark) {
            case '*':
                var items = new ArrayList<Object>();
                for (int n = length(text); n > 0; n--)
                    items.add(reply());
                return items;
            case '$':
                return text.equals("-1") ? null : exactly(length(text));
            case ':':
                return Long.valueOf(text);
            case '+':
                return text;
            case '-':
                var words = (text + " ").split(" ", 2);
                return new IdemException.Refused(words[0], words[1].trim());
            default:
                throw unexpected();
            }
        }

        private int length(String text) throws IOException {
            int n = Integer.parseInt(text);
            if (n < 0 || n > LONGEST)
                throw unexpected();
            return n;
        }
    }

    /** Unix sockets need JDK 16. */
    private SocketChannel unix() throws IOException {
        if (auth != null) { // a secret is not sent to a socket that somebody else made
            var owner = Files.getOwner(Path.of(path)).getName();
            if (!owner.equals("root") && !owner.equals(System.getProperty("user.name")))
                throw new IOException(path + " belongs to another user: no secret is sent to it");
        }
        try {
            return (SocketChannel) SocketChannel.class.getMethod("open", ProtocolFamily.class).invoke(null, StandardProtocolFamily.valueOf("UNIX"));
        } catch (ReflectiveOperationException | IllegalArgumentException e) {
            throw new IOException("unix sockets need Java 16 or newer: use idem://host:port", e);
        }
    }

    private SocketAddress unixAddress() throws IOException {
        try {
            return (SocketAddress) Class.forName("java.net.UnixDomainSocketAddress").getMethod("of", String.class).invoke(null, path);
        } catch (ReflectiveOperationException e) {
            throw new IOException(path + " is not the path of a unix socket", e);
        }
    }
}
