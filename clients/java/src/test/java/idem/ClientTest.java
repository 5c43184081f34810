package idem;

import java.math.BigDecimal;
import java.time.Duration;
import java.time.LocalDate;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

import org.springframework.aop.framework.autoproxy.DefaultAdvisorAutoProxyCreator;
import org.springframework.context.annotation.AnnotationConfigApplicationContext;
import org.springframework.context.annotation.Bean;

import idem.spring.IdempotentAdvisor;

/** What the conformance scenarios do not reach: java idem.ClientTest URL UNIX-URL. Prints the name of each test that passed. */
public final class ClientTest {
    enum Size { SMALL, LARGE }

    record Line(String item, int count, BigDecimal price) { }

    record Order(String id, Size size, LocalDate day, List<Line> lines, Map<String, Long> marks, boolean gift, Double weight) { }

    static class Account {
        private String owner;
        private long balance;
        transient int ignored = 5;

        Account() {
        }

        Account(String owner, long balance) {
            this.owner = owner;
            this.balance = balance;
        }

        public String getOwner() {
            return owner;
        }
    }

    static final class OutOfStock extends Exception {
        private static final long serialVersionUID = 1;

        OutOfStock(String message) {
            super(message);
        }
    }

    interface Orders {
        @Idempotent(key = "'order-' + #order.id", scope = "orders", ttl = "24h", lease = "30s", waitFor = "5s", mode = Mode.STRICT)
        Order place(Order order) throws OutOfStock;

        @Idempotent(key = "#name", scope = "#p1.owner")
        int count(@Key("name") String label, Account account);

        @IdemToken(subject = "shop")
        String test(String token);

        @Idempotent(key = "#p0['id']", arguments = "#p0['id']", mode = Mode.LOOSE)
        void loose(Map<String, String> map);

        String plain();
    }

    static class Shop implements Orders {
        final AtomicInteger ran = new AtomicInteger();

        @Override
        public Order place(Order order) throws OutOfStock {
            ran.incrementAndGet();
            if (order.lines().isEmpty())
                throw new OutOfStock("no lines");
            return order;
        }

        @Override
        public int count(String label, Account account) {
            return ran.incrementAndGet();
        }

        @Override
        public String test(String token) {
            return "正常调用";
        }

        @Override
        public void loose(Map<String, String> map) {
            ran.incrementAndGet();
            if (map.containsKey("fail"))
                throw new IllegalStateException("fail");
        }

        @Override
        public String plain() {
            return "plain";
        }
    }

    interface Futures {
        @Idempotent(key = "#p0")
        java.util.concurrent.CompletableFuture<String> later(String key);
    }

    interface Wrong {
        @Idempotent(key = "#nothing.id")
        String wrong(String key);
    }

    static final class Beans {
        static String url;

        @Bean
        static IdemClient client() {
            return IdemClient.open(url, Options.strict().scope("spring"));
        }

        @Bean
        static IdempotentAdvisor idempotent(IdemClient client) {
            return new IdempotentAdvisor(client);
        }

        @Bean
        static DefaultAdvisorAutoProxyCreator proxies() {
            return new DefaultAdvisorAutoProxyCreator();
        }

        @Bean
        static Orders orders() {
            return new Shop();
        }
    }

    static void check(boolean good, String what) {
        if (!good)
            throw new AssertionError(what);
    }

    static void equal(Object got, Object wanted) {
        check(Objects.equals(got, wanted), "got " + got + ", wanted " + wanted);
    }

    interface Block {
        void run() throws Exception;
    }

    static <E extends Throwable> E fails(Class<E> type, Block block) throws Exception {
        try {
            block.run();
        } catch (Throwable e) {
            if (type.isInstance(e))
                return type.cast(e);
            throw new AssertionError("another error than " + type, e);
        }
        throw new AssertionError("no " + type.getName());
    }

    static final Order ORDER = new Order("7", Size.LARGE, LocalDate.of(2026, 11, 16),
            List.of(new Line("book \"x\"\n中😀", 2, new BigDecimal("19.90"))), Map.of("a", 1L), true, 0.5);

    private final IdemClient client;
    private final IdemClient unix;
    private final String url;

    ClientTest(String url, String unixUrl) {
        this.url = url;
        client = IdemClient.open(url, Options.strict().scope("java"));
        unix = IdemClient.open(unixUrl, Options.strict().scope("java"));
    }

    void recordsAndClassesComeBackAsTheyWere() {
        for (int i = 0; i < 2; i++) {
            equal(client.once("record", Order.class, () -> ORDER), ORDER);
            equal(client.once("list", new TypeRef<List<Order>>() { }, client.options(), () -> List.of(ORDER)), List.of(ORDER));
            var account = client.once("bean", Account.class, () -> new Account("ann", 7));
            equal(account.owner + account.balance + account.ignored, "ann75");
            equal(client.once("map", Map.class, () -> Map.of("n", 1L)), Map.of("n", 1L));
            equal(client.once("number", Double.class, () -> 1.5), 1.5);
            equal(client.once("array", int[].class, () -> new int[] {1, 2}).length, 2);
            equal(client.once("object", Object.class, () -> 2.5), 2.5);
        }
        try {
            client.once("record", Integer.class, () -> 1);
            throw new AssertionError("an order was read as a number");
        } catch (IdemException.Done e) {
            check(e.getMessage().contains("cannot be read as java.lang.Integer"), e.getMessage());
        }
    }

    void jacksonIsOneLine() {
        var mapper = new com.fasterxml.jackson.databind.ObjectMapper();
        Codec jackson = Codec.of(mapper::writeValueAsBytes, (json, type) -> mapper.readValue(json, mapper.constructType(type)));
        var options = client.options().codec(jackson);
        for (int i = 0; i < 2; i++)
            equal(client.once("jackson", Line.class, options.arguments(new Line("b", 1, BigDecimal.ONE)),
                    () -> new Line("a", 1, BigDecimal.TEN)), new Line("a", 1, BigDecimal.TEN));
        equal(IdemClient.fingerprint(new Line("b", 1, BigDecimal.ONE), jackson), IdemClient.fingerprint(Map.of("price", 1, "count", 1, "item", "b")));
    }

    void aUnixSocketDoesTheSame() throws Exception {
        equal(unix.once("unix", String.class, () -> "first"), "first");
        equal(client.once("unix", String.class, () -> "second"), "first");
        Thread.sleep(1200); // the connection is asked whether it is alive
        equal(unix.once("unix", String.class, () -> "third"), "first");
    }

    void anInterruptedCallerIsStillRecorded() {
        equal(client.once("interrupted", String.class, () -> {
            Thread.currentThread().interrupt();
            return "done";
        }), "done");
        check(Thread.interrupted(), "the interrupt is lost");
        equal(unix.once("interrupted-unix", String.class, () -> {
            Thread.currentThread().interrupt();
            return "done";
        }), "done");
        check(Thread.interrupted(), "the interrupt is lost");
    }

    void aLostLeaseInterruptsTheWorkIfAsked() throws Exception {
        var told = new CountDownLatch(1);
        var options = client.options().lease(Duration.ofMillis(600)).interruptWork();
        fails(IdemException.LeaseLost.class, () -> client.once("lost", String.class, options, () -> {
            var claim = Claim.current();
            claim.onLost(told::countDown);
            client.release(new Claim("lost", claim.options).fence(claim.fence())); // somebody else decides
            try {
                Thread.sleep(60000);
            } catch (InterruptedException e) {
                check(claim.isLost(), "interrupted without a loss");
                return "late";
            }
            return "never interrupted";
        }));
        check(told.await(10, TimeUnit.SECONDS), "the listener was not told");
        check(!Thread.interrupted(), "the interrupt was ours");
    }

    /** Finished claims leave nothing behind, and the thread that watches is not woken by them. */
    void finishedClaimsAreForgottenAtOnce() throws Exception {
        for (int i = 0; i < 500; i++)
            client.once("finished-" + i, Integer.class, () -> 1);
        equal(client.alarms.set.size(), 0);
    }

    void workThatWeInterruptedLeavesItsOutcomeUnknown() throws Exception {
        var options = Options.strict().scope("java").lease(Duration.ofMillis(600)).interruptWork();
        fails(IllegalStateException.class, () -> client.once("stopped", String.class, options, () -> {
            new Thread(Claim.current()::lose).start();
            try {
                Thread.sleep(60000);
            } catch (InterruptedException e) {
                throw new IllegalStateException("stopped in the middle", e);
            }
            return "never interrupted";
        }));
        for (;;) {
            try {
                client.once("stopped", String.class, () -> "again");
                throw new AssertionError("it ran again, or its failure was recorded");
            } catch (IdemException.InProgress e) {
                Thread.sleep(50);
            } catch (IdemException.OutcomeUnknown e) {
                return;
            }
        }
    }

    /** A future, a stream or a publisher: it may not even have begun. */
    void aResultThatIsNotThereYetIsNoResult() throws Exception {
        var later = List.of(java.util.concurrent.CompletableFuture.completedFuture(1), java.util.stream.Stream.of(1), new java.util.concurrent.SubmissionPublisher<Integer>());
        for (var value : later) {
            var key = "later-" + value.getClass().getSimpleName();
            fails(IdemException.OutcomeUnknown.class, () -> client.once(key, Object.class, () -> value));
            fails(IdemException.InProgress.class, () -> client.once(key, Object.class, () -> "again"));
        }
    }

    /** Half of a surrogate pair is no text: as "?" it would be the key of another request. */
    void twoKeysNeverBecomeOne() throws Exception {
        for (var key : List.of("k\ud83d", "k\ude00")) {
            fails(IllegalArgumentException.class, () -> client.once(key, String.class, () -> key));
            fails(IllegalArgumentException.class, () -> client.once("k", String.class, client.options().scope(key), () -> key));
            fails(IllegalArgumentException.class, () -> client.once("k", String.class, client.options().arguments(key), () -> key));
        }
        equal(client.once("k\ud83d\ude00", String.class, () -> "pair"), "pair");
    }

    void addressesAreChecked() throws Exception {
        for (var wrong : List.of("http://x", "idem://", "idem://x:99999999", "idem://a@b@/x", "unix:/x?auth-file=/y", "idem://x?ca=/y", "idems://x?auth=1", "idems://x?ca=/no/such/file",
                "idems://x?cert=/a"))
            check(!fails(IllegalArgumentException.class, () -> IdemClient.open(wrong)).getMessage().contains("a@b"), wrong);
        for (var good : List.of("idem://my_host", "idem://[::1]:6390", "idem://name:secret@host:1/", "idems://host", "[::1]:6390", "idem+unix:7", "name:s/e#c@ret@host:1"))
            IdemClient.open(good).close();
    }

    /** Before anything is sent: null is no work, and a result that is kept for no time does not protect. */
    void mistakesThatWouldRemoveTheProtectionAreRefused() throws Exception {
        says("work is null", () -> client.once("k", String.class, null));
        says("work is null", () -> client.once("k", new TypeRef<List<String>>() { }, client.options(), null));
        says("work is null", () -> SqlOnce.once(null, "k", String.class, client.options().arguments(1), null));
        for (var wrong : new Duration[] {null, Duration.ZERO, Duration.ofNanos(24), Duration.ofSeconds(-5)}) {
            says("ttl is a Duration of 1 ms or more, not " + wrong, () -> client.options().ttl(wrong));
            says("lease is a Duration of 1 ms or more, not " + wrong, () -> client.options().lease(wrong));
            says("ttl is a Duration of 1 ms or more, not " + wrong, () -> client.issue("ann", wrong));
        }
        for (var wrong : new Duration[] {null, Duration.ofSeconds(-5)}) {
            says("waitFor is a Duration of 0 ms or more, not " + wrong, () -> client.options().waitFor(wrong));
            says("deadline is a Duration of 0 ms or more, not " + wrong, () -> client.options().deadline(wrong));
        }
        says("NoTime.run: ttl is a Duration of 1 ms or more, not PT0S", () -> Idempotents.wrap(client, NoTime.class, key -> null));
        says("no parameter #other", () -> Idempotents.wrap(client, WrongArguments.class, key -> null));
        says("no parameter #other", () -> Idempotents.wrap(client, WrongScope.class, key -> null));
        equal(client.once("k", String.class, client.options().waitFor(Duration.ZERO), () -> "first"), "first");
    }

    interface NoTime {
        @Idempotent(key = "#p0", ttl = "0s")
        String run(String key);
    }

    interface WrongArguments {
        @Idempotent(key = "#p0", arguments = "#other")
        String run(String key);
    }

    interface WrongScope {
        @Idempotent(key = "#p0", scope = "#other.id")
        String run(String key);
    }

    private static void says(String text, Block block) throws Exception {
        var message = fails(IllegalArgumentException.class, block).getMessage();
        check(message.contains(text), message);
    }

    void theErrorsSayWhatToDo() throws Exception {
        fails(IdemException.Done.class, () -> client.once("odd", Object.class, Thread::currentThread));
        equal(fails(IdemException.ResultNotKept.class, () -> client.once("odd", Object.class, () -> 1)).getMessage(),
                "java/odd was done; its result was not kept: it was too large, or could not be written");
        fails(IdemException.OutcomeUnknown.class, () -> client.once("it's", String.class, client.options().lease(Duration.ofMillis(1)), () -> {
            throw new IdemException.OutcomeUnknown("left");
        }));
        Thread.sleep(50);
        equal(fails(IdemException.OutcomeUnknown.class, () -> client.once("it's", String.class, () -> "again")).getMessage(),
                "nobody knows whether java/it's was executed: find out, then settle it (idem doubts lists it; idem settle java 'it'\\''s' --as …)");
    }

    void theFourClassesAreTypes() throws Exception {
        fails(IdemException.NotExecuted.class, () -> IdemClient.open("idem://127.0.0.1:1", Options.strict().deadline(Duration.ofMillis(200)))
                .once("k", String.class, () -> "never"));
        var failed = fails(OutOfStock.class, () -> client.once("failed", String.class, () -> {
            throw new OutOfStock("none left");
        }));
        equal(failed.getMessage(), "none left");
        var done = fails(IdemException.Failed.class, () -> client.once("failed", String.class, () -> "x"));
        equal(done.type() + done.text(), "OutOfStocknone left");
        fails(IllegalArgumentException.class, () -> IdemClient.open(url, Options.strict().failOpen()));
        fails(IllegalArgumentException.class, () -> IdemClient.open("http://x"));
    }

    void annotationsGuardAnInterface() throws Exception {
        guarded(Idempotents.wrap(client, Orders.class, new Shop()), "");
        fails(IllegalArgumentException.class, () -> Idempotents.wrap(client, Futures.class, key -> null));
        var wrong = fails(IllegalArgumentException.class, () -> Idempotents.wrap(client, Wrong.class, key -> null));
        check(wrong.getMessage().contains("no parameter #nothing"), wrong.getMessage());
    }

    private void guarded(Orders orders, String mark) throws Exception {
        var order = new Order("9" + mark, Size.SMALL, ORDER.day(), ORDER.lines(), Map.of(), false, null);
        equal(orders.place(order), order);
        equal(orders.place(order), order);
        fails(IdemException.Mismatch.class, () -> orders.place(
                new Order("9" + mark, Size.LARGE, ORDER.day(), ORDER.lines(), Map.of(), false, null)));
        var empty = new Order("10" + mark, Size.SMALL, null, List.of(), null, false, null);
        fails(OutOfStock.class, () -> orders.place(empty));
        fails(IdemException.Failed.class, () -> orders.place(empty));
        int first = orders.count("c" + mark, new Account("ann", 1));
        equal(orders.count("c" + mark, new Account("ann", 1)), first);
        equal(orders.count("c" + mark, new Account("bob", 1)), first + 1);
        fails(IllegalArgumentException.class, () -> orders.count(null, new Account("ann", 1)));
        fails(IllegalStateException.class, () -> orders.loose(Map.of("id", "l" + mark, "fail", "1")));
        orders.loose(Map.of("id", "l" + mark));
        orders.loose(Map.of("id", "l" + mark));
        var token = client.issue("shop", Duration.ofMinutes(5));
        equal(orders.test(token), "正常调用");
        fails(IdemException.TokenUsed.class, () -> orders.test(token));
        fails(IdemException.TokenUnknown.class, () -> orders.test("never-issued"));
        equal(orders.plain(), "plain");
    }

    void springGuardsItsBeans() throws Exception {
        Beans.url = url;
        try (var context = new AnnotationConfigApplicationContext()) {
            context.register(Beans.class);
            context.refresh();
            guarded(context.getBean(Orders.class), "-spring");
        }
    }

    void keysAreReadAsTheGatewayReadsThem() throws Exception {
        equal(IdempotencyKey.parse(" \"a \\\"b\\\\\" "), "a \"b\\");
        equal(IdempotencyKey.parse("order-7"), "order-7");
        for (var wrong : List.of("", "\"\"", "a b", "\"a", "\"a\" b", "\" a\"", "\"\\x\"", "é", "x".repeat(256), "\"" + "x".repeat(256) + "\""))
            fails(IllegalArgumentException.class, () -> IdempotencyKey.parse(wrong));
    }

    void jsonRefusesWhatIsNone() throws Exception {
        for (var wrong : List.of("", "{", "[1,]", "{\"a\" 1}", "01", "1.", "tru", "\"\\x\"", "\"a", "1 2", "{a:1}", "[".repeat(5000), "\"\\u12g4\""))
            fails(IllegalArgumentException.class, () -> Json.read(wrong));
        equal(Json.read(" {\"a\" : [1, -2.5e3, \"\\u4e2d\\n\", true, null, 12345678901234567890]} ").toString(),
                "{a=[1, -2.5E+3, 中\n, true, null, 12345678901234567890]}");
        var cycle = new java.util.HashMap<String, Object>();
        cycle.put("self", cycle);
        fails(IllegalArgumentException.class, () -> IdemClient.fingerprint(cycle));
        fails(IllegalArgumentException.class, () -> IdemClient.fingerprint(Double.NaN));
        fails(IllegalArgumentException.class, () -> IdemClient.fingerprint(new Thread()));
    }

    /** Call every method of a test that has no parameters and gives nothing back. */
    static void runAll(Object test) throws Exception {
        for (var method : test.getClass().getDeclaredMethods()) {
            if (method.getParameterCount() > 0 || method.getReturnType() != void.class || method.isSynthetic()
                    || java.lang.reflect.Modifier.isPrivate(method.getModifiers()))
                continue;
            method.invoke(test);
            System.out.println("passed " + method.getName());
        }
    }

    public static void main(String[] args) throws Exception {
        runAll(new ClientTest(args[0], args[1]));
    }
}
