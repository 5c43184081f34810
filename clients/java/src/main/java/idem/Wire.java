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
import java.net.URI;
import java.net.URISyntaxException;
import java.nio.ByteBuffer;
import java.nio.channels.Channels;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ConcurrentLinkedDeque;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;

/** The Redis protocol as idem speaks it, and a pool of connections that speak it. A connection serves one call at a time. */
final class Wire implements Closeable {
    static final long CONNECT_MS = 2000;
    static final long REPLY_MS = 5000;
    private static final int IDLE_MAX = 16;
    private static final long TRUSTED_NS = TimeUnit.SECONDS.toNanos(1);
    private static final int LONGEST = 512 << 20;

    /** The connection failed. {@code sent}: the server may have got the command. */
    static final class Broken extends Exception {
        private static final long serialVersionUID = 1;
        final boolean sent;

        Broken(IOException cause, boolean sent) {
            super(cause.getMessage() == null ? cause.toString() : cause.getMessage(), cause);
            this.sent = sent;
        }
    }

    private final ScheduledExecutorService timer;
    private final ConcurrentLinkedDeque<Connection> idle = new ConcurrentLinkedDeque<>();
    private String path;
    private String host;
    private int port;
    private String[] auth;
    private volatile boolean closed;

    /** idem://[name:secret@]host:port or idem+unix:/path; null: IDEM_SERVER. */
    Wire(String url, ScheduledExecutorService timer) {
        this.timer = timer;
        var given = url != null ? url : System.getenv().getOrDefault("IDEM_SERVER", "idem://127.0.0.1:6390");
        var secret = System.getenv().getOrDefault("IDEM_AUTH", "");
        if (given.startsWith("idem+unix:")) {
            path = given.substring("idem+unix:".length());
        } else {
            var uri = parsed(given);
            host = uri.getHost().replaceAll("[\\[\\]]", "");
            port = uri.getPort() < 0 ? 6390 : uri.getPort();
            if (uri.getUserInfo() != null)
                secret = uri.getUserInfo();
        }
        if (!secret.isEmpty())
            auth = ("AUTH:" + secret).split(":", 3);
    }

    private static URI parsed(String url) {
        try {
            var uri = new URI(url);
            if ("idem".equals(uri.getScheme()) && uri.getHost() != null)
                return uri;
        } catch (URISyntaxException e) { // told below, without the secret that its message may hold
        }
        throw new IllegalArgumentException("an address is idem://host:port or idem+unix:/path, not "
                + url.substring(url.lastIndexOf('@') + 1));
    }

    /** One command and its reply: text, byte[], Long, List or null. Waits at most so long for the reply. */
    Object call(Object[] args, long replyMs) throws Broken {
        Connection connection;
        try {
            connection = take(replyMs);
        } catch (IOException e) {
            throw new Broken(e, false);
        }
        Object answer;
        try {
            answer = connection.call(args, replyMs);
        } catch (IOException | RuntimeException e) {
            connection.close();
            drop(); // the others of the pool are of the same age and likely broken too
            throw new Broken(e instanceof IOException ? (IOException) e : new IOException(e), true);
        }
        connection.usedAt = System.nanoTime();
        if (idle.size() < IDLE_MAX && !closed)
            idle.push(connection);
        else
            connection.close();
        if (answer instanceof IdemException.Refused)
            throw (IdemException.Refused) answer;
        return answer;
    }

    private Connection take(long ms) throws IOException {
        for (Connection c; (c = idle.poll()) != null; c.close())
            if (System.nanoTime() - c.usedAt < TRUSTED_NS || c.isAlive())
                return c;
        var connectMs = Math.min(CONNECT_MS, ms);
        var made = path != null ? new UnixConnection(path, connectMs) : new TcpConnection(host, port, connectMs);
        boolean good = false;
        try {
            var answer = auth == null ? null : made.call(auth, Math.min(REPLY_MS, ms));
            if (answer instanceof IdemException.Refused)
                throw (IdemException.Refused) answer;
            good = true;
            return made;
        } finally {
            if (!good)
                made.close();
        }
    }

    private void drop() {
        for (Connection c; (c = idle.poll()) != null;)
            c.close();
    }

    @Override
    public void close() {
        closed = true;
        drop();
    }

    private static byte[] encoded(Object[] args) {
        var out = new ByteArrayOutputStream();
        out.writeBytes(Json.utf8("*" + args.length + "\r\n"));
        for (var arg : args) {
            var bytes = arg instanceof byte[] ? (byte[]) arg : Json.utf8(arg.toString());
            out.writeBytes(Json.utf8("$" + bytes.length + "\r\n"));
            out.writeBytes(bytes);
            out.writeBytes(new byte[] {'\r', '\n'});
        }
        return out.toByteArray();
    }

    private abstract static class Connection {
        private final byte[] buffer = new byte[8192];
        private int from;
        private int to;
        private long end;
        InputStream in;
        OutputStream out;
        long usedAt;

        /** Let reads fail after so many milliseconds. */
        abstract void limit(long ms) throws IOException;

        abstract void unlimit();

        abstract boolean isAlive();

        abstract void close();

        Object call(Object[] args, long replyMs) throws IOException {
            end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(replyMs);
            limit(Math.max(1, replyMs));
            try {
                out.write(encoded(args));
                return reply();
            } finally {
                unlimit();
            }
        }

        private int next() throws IOException {
            if (from == to) {
                long left = TimeUnit.NANOSECONDS.toMillis(end - System.nanoTime());
                if (left <= 0)
                    throw new SocketTimeoutException("no reply in time");
                limit(left);
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
                throw new IOException("unexpected reply: is this an idem server?");
            return bytes;
        }

        private String line() throws IOException {
            var line = new ByteArrayOutputStream();
            for (int c; (c = next()) != '\r';) {
                line.write(c);
                if (line.size() > 65536)
                    throw new IOException("unexpected reply: is this an idem server?");
            }
            next();
            return line.toString(StandardCharsets.UTF_8);
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
                throw new IOException("unexpected reply: is this an idem server?");
            }
        }

        private static int length(String text) throws IOException {
            int n = Integer.parseInt(text);
            if (n < 0 || n > LONGEST)
                throw new IOException("unexpected reply: is this an idem server?");
            return n;
        }
    }

    private static final class TcpConnection extends Connection {
        private final Socket socket = new Socket();

        TcpConnection(String host, int port, long ms) throws IOException {
            try {
                socket.connect(new InetSocketAddress(host, port), (int) ms);
                socket.setTcpNoDelay(true);
                in = socket.getInputStream();
                out = socket.getOutputStream();
            } catch (IOException e) {
                close();
                throw e;
            }
        }

        @Override
        void limit(long ms) throws IOException {
            socket.setSoTimeout((int) Math.min(ms, Integer.MAX_VALUE));
        }

        @Override
        void unlimit() {
        }

        /** A server that went away has closed the connection: reading says so at once. */
        @Override
        boolean isAlive() {
            try {
                limit(1);
                in.read();
                return false; // the end, or a reply that nobody asked for
            } catch (SocketTimeoutException e) {
                return true;
            } catch (IOException e) {
                return false;
            }
        }

        @Override
        void close() {
            try {
                socket.close();
            } catch (IOException e) { // nothing is left to be saved
            }
        }
    }

    /** Needs JDK 16. Reads of a unix socket know no timeout, so a timer closes the connection instead. */
    private final class UnixConnection extends Connection {
        private final SocketChannel channel;
        private java.util.concurrent.Future<?> alarm;

        UnixConnection(String path, long ms) throws IOException {
            checkOwner(path);
            try {
                var address = (SocketAddress) Class.forName("java.net.UnixDomainSocketAddress").getMethod("of", String.class)
                        .invoke(null, path);
                var open = SocketChannel.class.getMethod("open", ProtocolFamily.class);
                channel = (SocketChannel) open.invoke(null, StandardProtocolFamily.valueOf("UNIX"));
                limit(ms);
                channel.connect(address);
                unlimit();
            } catch (ReflectiveOperationException | IllegalArgumentException e) {
                throw new IOException("unix sockets need Java 16 or newer: use idem://host:port", e);
            } catch (IOException e) {
                close();
                throw e;
            }
            in = Channels.newInputStream(channel);
            out = Channels.newOutputStream(channel);
        }

        /** Do not send a secret to a socket that somebody else made. */
        private void checkOwner(String path) throws IOException {
            if (auth == null)
                return;
            var owner = Files.getOwner(Path.of(path)).getName();
            if (!owner.equals("root") && !owner.equals(System.getProperty("user.name")))
                throw new IOException(path + " belongs to another user: no secret is sent to it");
        }

        @Override
        void limit(long ms) {
            if (alarm == null)
                alarm = timer.schedule(this::close, ms, TimeUnit.MILLISECONDS);
        }

        @Override
        void unlimit() {
            alarm.cancel(false);
            alarm = null;
        }

        @Override
        boolean isAlive() {
            try {
                channel.configureBlocking(false);
                int n = channel.read(ByteBuffer.allocate(1));
                channel.configureBlocking(true);
                return n == 0;
            } catch (IOException e) {
                return false;
            }
        }

        @Override
        void close() {
            try {
                if (channel != null)
                    channel.close();
            } catch (IOException e) { // nothing is left to be saved
            }
        }
    }
}
