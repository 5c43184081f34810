package idem.jakarta;

import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.URLDecoder;
import java.nio.charset.Charset;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.Enumeration;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;

import jakarta.servlet.AsyncContext;
import jakarta.servlet.ReadListener;
import jakarta.servlet.ServletException;
import jakarta.servlet.ServletInputStream;
import jakarta.servlet.ServletRequest;
import jakarta.servlet.ServletResponse;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletRequestWrapper;
import jakarta.servlet.http.Part;

import idem.IdemClient;

/** A request whose body was read already, for its fingerprint, and can be read again by the servlet. */
final class HeldRequest extends HttpServletRequestWrapper {
    private byte[] body;
    private Map<String, String[]> parameters;
    private boolean cut;

    HeldRequest(HttpServletRequest request) {
        super(request);
    }

    private boolean isType(String type) {
        var given = getContentType();
        return given != null && given.toLowerCase(Locale.ROOT).startsWith(type);
    }

    boolean isMultipart() {
        return isType("multipart/");
    }

    boolean read(int most) throws IOException {
        if (getContentLengthLong() > most)
            return false;
        body = getRequest().getInputStream().readNBytes(most + 1);
        return body.length <= most;
    }

    /** A servlet reads an upload itself. If that fails, the client went away while it sent. */
    private IOException cut(IOException e) {
        cut = true;
        return e;
    }

    boolean isCut() {
        return cut;
    }

    String digest() {
        return body == null ? "" : IdemClient.digest(body);
    }

    @Override
    public ServletInputStream getInputStream() throws IOException {
        var theirs = body == null ? super.getInputStream() : null;
        var in = body == null ? theirs : new ByteArrayInputStream(body);
        return new ServletInputStream() {
            @Override
            public int read() throws IOException {
                var one = new byte[1];
                return read(one, 0, 1) < 0 ? -1 : one[0] & 0xff;
            }

            @Override
            public int read(byte[] to, int at, int length) throws IOException {
                try {
                    return in.read(to, at, length);
                } catch (IOException e) {
                    throw cut(e);
                }
            }

            @Override
            public boolean isFinished() {
                return theirs == null ? ((ByteArrayInputStream) in).available() == 0 : theirs.isFinished();
            }

            @Override
            public boolean isReady() {
                return theirs == null || theirs.isReady();
            }

            @Override
            public void setReadListener(ReadListener listener) {
                throw new IllegalStateException("a guarded request is not read asynchronously");
            }
        };
    }

    @Override
    public Collection<Part> getParts() throws IOException, ServletException {
        try {
            return super.getParts();
        } catch (IOException e) {
            throw cut(e);
        }
    }

    @Override
    public Part getPart(String name) throws IOException, ServletException {
        try {
            return super.getPart(name);
        } catch (IOException e) {
            throw cut(e);
        }
    }

    private Charset charset() {
        var name = getCharacterEncoding();
        return name == null ? StandardCharsets.UTF_8 : Charset.forName(name);
    }

    @Override
    public BufferedReader getReader() throws IOException {
        return body == null ? super.getReader() : new BufferedReader(new InputStreamReader(getInputStream(), charset()));
    }

    /** The container reads the parameters of a form from the body, which is read here: so they are read here too. */
    @Override
    public Map<String, String[]> getParameterMap() {
        if (body == null || !isType("application/x-www-form-urlencoded"))
            return super.getParameterMap();
        if (parameters == null) {
            var found = new LinkedHashMap<String, List<String>>();
            add(found, getQueryString(), StandardCharsets.UTF_8);
            add(found, new String(body, StandardCharsets.ISO_8859_1), charset());
            var made = new LinkedHashMap<String, String[]>();
            found.forEach((name, values) -> made.put(name, values.toArray(new String[0])));
            parameters = Collections.unmodifiableMap(made);
        }
        return parameters;
    }

    private static void add(Map<String, List<String>> to, String form, Charset charset) {
        for (var pair : (form == null ? "" : form).split("&")) {
            if (pair.isEmpty())
                continue;
            var parts = (pair + "=").split("=", 3);
            to.computeIfAbsent(URLDecoder.decode(parts[0], charset), name -> new ArrayList<>()).add(URLDecoder.decode(parts[1], charset));
        }
    }

    @Override
    public String getParameter(String name) {
        var values = getParameterValues(name);
        return values == null ? null : values[0];
    }

    @Override
    public String[] getParameterValues(String name) {
        return getParameterMap().get(name);
    }

    @Override
    public Enumeration<String> getParameterNames() {
        return Collections.enumeration(getParameterMap().keySet());
    }

    @Override
    public boolean isAsyncSupported() {
        return false;
    }

    @Override
    public AsyncContext startAsync() {
        throw new IllegalStateException("a guarded request is not handled asynchronously: its answer is recorded first");
    }

    @Override
    public AsyncContext startAsync(ServletRequest request, ServletResponse response) {
        return startAsync();
    }
}
