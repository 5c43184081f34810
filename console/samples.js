// The same call in other languages. Every line stands in the page that is named here; a test compares them.
const BANK = ["examples/bank/README.md", `bank() { curl -s -w '\\n' -X "$1" "localhost:8080$2" \${3:+-d "$3"} "\${@:4}"; }`];
const bank = (...lines) => ["curl", BANK[0], [BANK[1], ...lines].join("\n")];

const HTTP = ["curl", "docs/http.md", `curl -s -X POST http://127.0.0.1:7399/v1/records/shop/order-7/begin
curl -s -X POST http://127.0.0.1:7399/v1/records/shop/order-7/finish -H 'Content-Type: application/json' \\
-d '{"fence": 1794730903716819, "outcome": "succeeded", "result": "paid"}'`];

const ONCE = [
    ["Java", "clients/java/README.md", `var client = IdemClient.open("idem://127.0.0.1:6390", Options.strict().scope("shop"));
Order order = client.once("order-7", Order.class, client.options().arguments(cart), () -> placeOrder(cart));`],
    ["Python", "clients/python/README.md", `client = idem.Client("idem://127.0.0.1:6390", scope="shop")
order = client.once("order-7", lambda: place_order(cart), arguments=cart)`],
    ["Go", "clients/go/README.md", `client, err := idem.Open("idem://127.0.0.1:6390", idem.Scope("shop"))
order, err := idem.Do(ctx, client, "order-7", func(ctx context.Context) (Order, error) {
	return placeOrder(cart)
}, idem.Arguments(cart))`],
    ["Node", "clients/node/README.md", `const client = new Client("idem://127.0.0.1:6390", {scope: "shop"});
const order = await client.once("order-7", () => placeOrder(cart), {arguments: cart});`],
];

const TRANSACTION = [
    ["Java", "clients/java/README.md", `try (var db = pool.getConnection()) {
    Order paid = SqlOnce.once(db, "order-9", Order.class, Options.strict().scope("shop").arguments(cart), () -> placeOrder(db, cart));
}`],
    ["Python", "clients/python/README.md", `with psycopg.connect(DATABASE, autocommit=True) as db:
    paid = idem.sql.once(db, "order-9", lambda: place_order_in(db, cart), scope="shop", arguments=cart)`],
    ["Go", "clients/go/README.md", `paid, err := idem.DoDB(ctx, db, "order-9", func(ctx context.Context, tx *sql.Tx) (Order, error) {
	if _, err := tx.ExecContext(ctx, "insert into orders (item, count) values ($1, $2)", cart.Item, cart.Count); err != nil {
		return Order{}, err
	}
	return placeOrder(cart)
}, idem.Scope("shop"), idem.Arguments(cart))`],
    ["Node", "clients/node/README.md", `const paid = await sqlOnce(pool, "order-9", async (db) => {
    await db.query("insert into orders (item, count) values ($1, $2)", [cart.item, cart.count]);
    return {total: 20};
}, {scope: "shop", arguments: cart});`],
];

const TOKEN = [
    ["Java", "clients/java/README.md", `String token = client.issue("ann", Duration.ofMinutes(5));
orders.test(token, "ann");
} catch (IdemException.TokenUsed e) {`],
    ["Python", "clients/python/README.md", `client.issue("ann")
client.redeem(token, "ann")`],
    ["Go", "clients/go/README.md", `token, err := client.Issue(ctx, "ann", 5*time.Minute)
err = client.Redeem(ctx, token, "ann") // a second time it is ErrTokenUsed`],
    ["Node", "clients/node/README.md", `const token = await client.issue("ann");
await client.redeem(token, "ann"); // a second time it throws TokenUsed`],
];

const SQL = "docs/sql/README.md";
const CLAIM = ["SQL", SQL, `call idem_begin('shop', 'order-7', null, 'strict', 30000, 86400000, @verdict, @fence, @kind, @result);`];
const HANDLER = ["shell", "docs/tutorials/consumer.md",
    `idem consume 'redis-stream://127.0.0.1:6379?stream=orders&group=shop' --store journal:$HOME/consumed -- ./handle.sh`];

export const SAMPLES = {
    token: [bank(`TOKEN=$(bank GET /token)`, `for i in 1 2 3 4 5; do bank POST /test '' -H "token: $TOKEN"; done`), ...TOKEN],
    unique: [bank(`bank POST /orders "{\\"item\\":\\"phone\\",\\"no\\":\\"$NO\\"}"`), ...TRANSACTION,
        ["SQL", SQL, `insert into … on conflict do nothing
idem.insert_once(table, keys, values => '{}')`]],
    optimistic: [bank(`bank PUT /items/phone '{"price":1050,"version":10}'`), ...TRANSACTION,
        ["SQL", SQL, `select idem.update_versioned('item', '{"id": 7}', 'version', 10, '{"name": "tea"}', '{"price": 50}');`]],
    pessimistic: [bank(`for i in 1 2; do bank POST /accounts/ann/withdraw '{"amount":100}'; done`), ...TRANSACTION,
        ["SQL", SQL, `select … where id = ? for update skip locked
idem.lock_row(table, keys, wait_ms => 0)`]],
    dedup: [bank(`for i in 1 2; do bank POST /stock/phone/deduct '{"n":10}' -H 'Idempotency-Key: order-7'; done`), ...TRANSACTION, CLAIM],
    state: [bank(`for move in finish pay pay finish cancel; do bank POST /orders/$NO/$move; done`), ...TRANSACTION,
        ["SQL", SQL, `update … set state = 'paid' where id = ? and state = 'new'
idem.transition(machine, table, key column, key, state column, from, to)`]],
    lock: [["shell", "docs/locks.md", `idem lock nightly-report -- ./report.sh`],
        ["RESP", "docs/locks.md", `LOCK nightly-report host-7 30000
UNLOCK nightly-report 1794729600123456`],
        ["SQL", "docs/locks.md", `UPDATE account SET balance = ?, fence = ? WHERE id = ? AND fence <= ?`]],
    seq: [bank(`bank POST /transfers '{"source":"wap","seq":"1","from":"ann","to":"bob","amount":100}'`), ...ONCE, CLAIM],
    doubt: [bank(`bank POST /transfers/wap/4/settle`), ["shell", "docs/cli.md", `idem settle --as failed --scope shop --older 1h --reason 'bank down, nothing booked' --dry-run`], ...ONCE,
        ["SQL", SQL, `idem.settle(scope, id, outcome => null, result => '', ttl_ms => 86400000, kind => 'raw')`]],
    message: [HANDLER, HTTP, ...ONCE, CLAIM],
    strict: [bank(`for i in 1 2; do bank POST /transfers '{"source":"wap","seq":"2","from":"ann","to":"bob","amount":9999}'; done`,
        `bank POST /transfers '{"source":"wap","seq":"3","from":"ann","to":"bob","amount":9999,"mode":"loose"}'`), HTTP, ...ONCE, CLAIM],
};
