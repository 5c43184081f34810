package idem.jakarta;

import java.io.IOException;
import java.lang.reflect.Proxy;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Duration;

import jakarta.servlet.FilterConfig;
import jakarta.servlet.MultipartConfigElement;
import jakarta.servlet.ServletException;
import jakarta.servlet.http.Cookie;
import jakarta.servlet.http.HttpServlet;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;

import org.apache.catalina.startup.Tomcat;
import org.apache.tomcat.util.descriptor.web.FilterDef;
import org.apache.tomcat.util.descriptor.web.FilterMap;

import idem.IdemClient;
import idem.Options;

/** A Tomcat with one servlet behind the filter: java idem.jakarta.FilterApp PORT FOLDER URL. */
public final class FilterApp extends HttpServlet {
    private static final long serialVersionUID = 1;
    private final transient Path effects;

    FilterApp(Path effects) {
        this.effects = effects;
    }

    @Override
    protected void service(HttpServletRequest request, HttpServletResponse response) throws ServletException, IOException {
        if (request.getServletPath().equals("/upload") && !isWhole(request)) {
            response.sendError(400, "half");
            return;
        }
        Files.writeString(effects, request.getRequestURI() + "\n", StandardOpenOption.CREATE, StandardOpenOption.APPEND);
        switch (request.getServletPath()) {
        case "/orders":
            var body = new String(request.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
            response.setStatus(201);
            response.setContentType("application/json;charset=UTF-8");
            response.setHeader("Location", "/orders/7");
            response.addHeader("X-Two", "a");
            response.addHeader("X-Two", "b");
            response.addCookie(new Cookie("secret", "1"));
            response.getWriter().print("{\"order\":7,\"got\":\"" + body + "\",\"名\":\"书\"}");
            response.flushBuffer();
            break;
        case "/form":
            response.setContentType("text/plain;charset=UTF-8");
            response.getWriter().print(request.getParameter("name") + " " + request.getParameter("q"));
            break;
        case "/slow":
            sleep(3000);
            response.getWriter().print("slow");
            break;
        case "/missing":
            response.sendError(404, "no such order");
            break;
        case "/throws":
            throw new ServletException("the service failed");
        case "/unknown":
            throw new ServletException(new idem.IdemException.OutcomeUnknown("the bank did not respond"));
        case "/refused":
            throw new ServletException(new idem.IdemException.NotExecuted("the bank was not asked"));
        case "/limited":
            response.setStatus(429);
            break;
        case "/redirect":
            response.sendRedirect("/elsewhere");
            break;
        case "/large-failure":
            response.setStatus(500);
            response.getOutputStream().write(new byte[3 << 20]);
            break;
        case "/large":
            response.getOutputStream().write(new byte[3 << 20]);
            break;
        case "/async":
            request.startAsync();
            break;
        default:
            response.getWriter().print("fine");
        }
    }

    private static boolean isWhole(HttpServletRequest request) throws ServletException {
        try {
            if ("stream".equals(request.getQueryString()))
                return request.getInputStream().readAllBytes().length == request.getContentLength();
            return request.getParts().size() == 1 && request.getPart("f").getSize() == 100;
        } catch (IOException e) {
            return false;
        }
    }

    private static void sleep(long ms) {
        try {
            Thread.sleep(ms);
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }

    private static void filter(org.apache.catalina.Context context, String name, IdempotencyFilter filter, String pattern) {
        var def = new FilterDef();
        def.setFilterName(name);
        def.setFilter(filter);
        context.addFilterDef(def);
        var map = new FilterMap();
        map.setFilterName(name);
        map.addURLPattern(pattern);
        context.addFilterMap(map);
    }

    /** A method in small letters, or a parameter "yes", would let requests pass unguarded. */
    private static void mistakesAreRefused(IdemClient client) {
        refuses("POST, not post", () -> new IdempotencyFilter(client).methods("post"));
        for (var parameter : new String[][] {{"required", "yes"}, {"mode", "lose"}})
            refuses("the parameter " + parameter[0] + " is \"", () -> new IdempotencyFilter(client).init(config(parameter[0], parameter[1])));
        new IdempotencyFilter(client).init(config("required", "True"));
    }

    private static FilterConfig config(String name, String value) {
        return (FilterConfig) Proxy.newProxyInstance(FilterApp.class.getClassLoader(), new Class<?>[] {FilterConfig.class},
                (proxy, method, args) -> args[0].equals(name) ? value : null);
    }

    private static void refuses(String text, Runnable block) {
        try {
            block.run();
        } catch (IllegalArgumentException e) {
            if (e.getMessage().contains(text))
                return;
            throw e;
        }
        throw new AssertionError("not refused: " + text);
    }

    public static void main(String[] args) throws Exception {
        mistakesAreRefused(IdemClient.open(args[2]));
        var tomcat = new Tomcat();
        tomcat.setBaseDir(args[1]);
        tomcat.setPort(Integer.parseInt(args[0]));
        tomcat.getConnector().setProperty("address", "127.0.0.1");
        var options = Options.strict().deadline(Duration.ofSeconds(2));
        var shop = tomcat.addContext("", null);
        var servlet = Tomcat.addServlet(shop, "app", new FilterApp(Path.of(args[1], "effects")));
        servlet.addMapping("/");
        servlet.setMultipartConfigElement(new MultipartConfigElement(args[1]));
        filter(shop, "idem", new IdempotencyFilter(IdemClient.open(args[2], options)), "/*");
        var strict = tomcat.addContext("/required", null);
        Tomcat.addServlet(strict, "app", new FilterApp(Path.of(args[1], "effects"))).addMapping("/");
        filter(strict, "idem", new IdempotencyFilter(IdemClient.open(args[2], options.waitFor(Duration.ofSeconds(60)).mode(idem.Mode.LOOSE)))
                .required().maxBody(1000).scope(request -> request.getHeader("X-Tenant")), "/*");
        tomcat.start();
        tomcat.getServer().await();
    }
}
