package idem.jakarta;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.OutputStreamWriter;
import java.io.PrintWriter;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.TreeSet;

import jakarta.servlet.ServletOutputStream;
import jakarta.servlet.WriteListener;
import jakarta.servlet.http.HttpServletResponse;
import jakarta.servlet.http.HttpServletResponseWrapper;

import idem.HttpAnswer;

/** A response that is kept back until it is recorded. Headers go to the real response at once, which is not sent before. */
final class HeldResponse extends HttpServletResponseWrapper {
    private final ByteArrayOutputStream body = new ByteArrayOutputStream();
    private final Map<String, String> before = new HashMap<>();
    private ServletOutputStream stream;
    private PrintWriter writer;
    private boolean ended;

    HeldResponse(HttpServletResponse response) {
        super(response);
        for (var name : response.getHeaderNames())
            before.put(name, String.valueOf(response.getHeaders(name)));
    }

    /** The answer, without the headers that other filters had set before. */
    HttpAnswer answer() {
        if (writer != null)
            writer.flush();
        var answer = new HttpAnswer(getStatus(), body.toByteArray());
        if (getContentType() != null)
            answer.header("Content-Type", getContentType());
        for (var name : new TreeSet<>(getHeaderNames())) // Tomcat names a header as often as it has values
            if (!name.equalsIgnoreCase("Content-Type") && !String.valueOf(getHeaders(name)).equals(before.get(name)))
                for (var value : getHeaders(name))
                    answer.header(name, value);
        return answer;
    }

    void send(HttpAnswer answer) throws IOException {
        getResponse().setContentLength(answer.body.length);
        getResponse().getOutputStream().write(answer.body);
    }

    @Override
    public ServletOutputStream getOutputStream() {
        if (stream == null)
            stream = new ServletOutputStream() {
                @Override
                public void write(int b) {
                    if (!ended)
                        body.write(b);
                }

                @Override
                public void write(byte[] from, int at, int length) {
                    if (!ended)
                        body.write(from, at, length);
                }

                @Override
                public boolean isReady() {
                    return true;
                }

                @Override
                public void setWriteListener(WriteListener listener) {
                    throw new IllegalStateException("a guarded answer is not written asynchronously");
                }
            };
        return stream;
    }

    @Override
    public PrintWriter getWriter() throws IOException {
        if (writer == null) {
            if (getContentType() != null && !getContentType().contains("charset="))
                setCharacterEncoding(getCharacterEncoding()); // the container says so too, when it makes a writer
            writer = new PrintWriter(new OutputStreamWriter(getOutputStream(), getCharacterEncoding()));
        }
        return writer;
    }

    @Override
    public void sendError(int status) throws IOException {
        sendError(status, null);
    }

    @Override
    public void sendError(int status, String message) throws IOException {
        resetBuffer();
        setStatus(status);
        setContentType("text/plain;charset=UTF-8");
        body.writeBytes((message == null ? "status " + status : message).concat("\n").getBytes(StandardCharsets.UTF_8));
        ended = true;
    }

    @Override
    public void sendRedirect(String location) {
        resetBuffer();
        setStatus(302);
        setHeader("Location", location);
        ended = true;
    }

    @Override
    public void setContentLength(int length) { // it is told when the answer is complete
    }

    @Override
    public void setContentLengthLong(long length) {
    }

    @Override
    public void flushBuffer() {
    }

    @Override
    public void resetBuffer() {
        if (writer != null)
            writer.flush();
        body.reset();
    }

    @Override
    public void reset() {
        super.reset();
        resetBuffer();
        ended = false;
        writer = null;
    }

    @Override
    public boolean isCommitted() {
        return ended;
    }
}
