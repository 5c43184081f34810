/*
 * http_session.c - logins of the console.
 *
 * A login turns a credential into a cookie that scripts cannot read. Only the
 * hash of the cookie is kept here, and only until the session has been idle for
 * too long. A browser sends cookies also with requests of other sites' pages,
 * so a cookie counts only together with a header of the console, which no other
 * page can send. To settle or forget a record, the user has to enter the secret
 * again.
 */
#include "../../base/wait.h"
#include "http_inner.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SESSIONS_MAX 64
#define SESSIONS_EACH 8 /* sessions of one credential */
#define AGE_MAX_MS INT64_C(43200000)
#define TOKEN_LEN 32
#define TOKEN_VARIANT sodium_base64_VARIANT_URLSAFE_NO_PADDING

struct session {
    struct principal *principal; /* NULL: this slot is free */
    uint8_t hash[HTTP_SESSION_LEN];
    int64_t since_ms, used_ms;
};

struct http_sessions {
    int64_t idle_ms;
    pthread_mutex_t lock;
    struct session all[SESSIONS_MAX];
};

struct http_sessions *
http_sessions_open(int64_t idle_ms)
{
    struct http_sessions *self = calloc(1, sizeof(*self));

    if (!self)
        return NULL;
    self->idle_ms = idle_ms;
    pthread_mutex_init(&self->lock, NULL);
    return self;
}

void
http_sessions_close(struct http_sessions *self)
{
    if (!self)
        return;
    for (size_t i = 0; i < SESSIONS_MAX; i++)
        principal_put(self->all[i].principal);
    pthread_mutex_destroy(&self->lock);
    free(self);
}

static void
drop(struct session *session)
{
    principal_put(session->principal);
    sodium_memzero(session, sizeof(*session));
}

/* Under the lock. Compares with all sessions, so that the time does not depend
 * on which one matches. */
static struct session *
find(struct http_sessions *self, const uint8_t hash[HTTP_SESSION_LEN])
{
    struct session *found = NULL;
    int64_t now = idem__mono_ms();

    for (size_t i = 0; i < SESSIONS_MAX; i++) {
        struct session *s = &self->all[i];

        if (s->principal &&
            (now - s->used_ms > self->idle_ms ||
             now - s->since_ms > AGE_MAX_MS || !principal_valid(s->principal)))
            drop(s);
        if (sodium_memcmp(s->hash, hash, HTTP_SESSION_LEN) == 0 && s->principal)
            found = s;
    }
    return found;
}

/* Under the lock: a free slot, else the slot of the session that was idle for
 * the longest time. If this credential has its full share, only its own
 * sessions are candidates. */
static struct session *
make_room(struct http_sessions *self, const struct principal *principal)
{
    struct session *place = NULL, *oldest = &self->all[0], *own = NULL;
    size_t count = 0;

    for (size_t i = 0; i < SESSIONS_MAX; i++) {
        struct session *s = &self->all[i];

        if (!s->principal)
            place = s;
        if (s->used_ms < oldest->used_ms)
            oldest = s;
        if (s->principal != principal)
            continue;
        count++;
        if (!own || s->used_ms < own->used_ms)
            own = s;
    }
    if (count >= SESSIONS_EACH)
        place = own;
    else if (!place)
        place = oldest;
    drop(place);
    return place;
}

/* Cookies ignore ports, so two servers on one machine need two names. */
static void
cookie_name(const struct http_request *request, char name[32])
{
    snprintf(name, 32, "idem_session_%d", request->daemon->port);
}

static void
set_cookie(struct http_request *request, const char *token, bool over)
{
    char name[32];

    cookie_name(request, name);
    snprintf(request->cookie, sizeof(request->cookie),
             "%s=%s; Path=/; HttpOnly; SameSite=Strict%s%s", name, token,
             request->http->server->tls ? "; Secure" : "",
             over ? "; Max-Age=0" : "");
}

static void
begin_session(struct http_request *request)
{
    struct http_sessions *self = request->http->sessions;
    uint8_t token[TOKEN_LEN];
    char text[sodium_base64_ENCODED_LEN(TOKEN_LEN, TOKEN_VARIANT)];
    struct session *session;

    randombytes_buf(token, sizeof(token));
    sodium_bin2base64(text, sizeof(text), token, sizeof(token), TOKEN_VARIANT);
    crypto_generichash(request->session, HTTP_SESSION_LEN,
                       (const uint8_t *)text, strlen(text), NULL, 0);
    pthread_mutex_lock(&self->lock);
    session = make_room(self, request->principal);
    memcpy(session->hash, request->session, HTTP_SESSION_LEN);
    session->principal = principal_ref(request->principal);
    session->since_ms = session->used_ms = idem__mono_ms();
    pthread_mutex_unlock(&self->lock);
    set_cookie(request, text, false);
    request->by_session = true;
    sodium_memzero(token, sizeof(token));
    sodium_memzero(text, sizeof(text));
}

bool
http_session_login(struct http_request *request)
{
    struct server *server = request->http->server;
    struct http_call *call = &request->call;
    struct audit_source source = {0};

    if (!credentials_needed(server->credentials))
        return true;
    principal_put(request->principal);
    request->principal =
        credentials_login(server->credentials, call->name, call->secret);
    sodium_memzero((void *)(uintptr_t)call->secret.data, call->secret.len);
    sodium_memzero(request->body.data, request->body.len);
    if (!request->principal)
        return http_wrong_secret(request, "the name or the secret is wrong");
    begin_session(request);
    http_source(request, &source);
    server_log(server->log, LOG_INFO, "console-login",
               LOG_TEXT("who", source.who), LOG_TEXT("from", source.from));
    return true;
}

struct principal *
http_session_find(struct http_request *request)
{
    struct http_sessions *self = request->http->sessions;
    struct principal *principal = NULL;
    struct session *session;
    const char *token;
    char name[32];

    cookie_name(request, name);
    token = self && request->from_page
                ? MHD_lookup_connection_value(request->connection,
                                              MHD_COOKIE_KIND, name)
                : NULL;
    if (!token)
        return NULL;
    crypto_generichash(request->session, HTTP_SESSION_LEN,
                       (const uint8_t *)token, strlen(token), NULL, 0);
    pthread_mutex_lock(&self->lock);
    session = find(self, request->session);
    if (session) {
        session->used_ms = idem__mono_ms();
        principal = principal_ref(session->principal);
        request->by_session = true;
    }
    pthread_mutex_unlock(&self->lock);
    return principal;
}

bool
http_session_lives(struct http *http, const uint8_t hash[HTTP_SESSION_LEN])
{
    bool lives;

    pthread_mutex_lock(&http->sessions->lock);
    lives = find(http->sessions, hash) != NULL;
    pthread_mutex_unlock(&http->sessions->lock);
    return lives;
}

void
http_session_end(struct http_request *request)
{
    struct http_sessions *self = request->http->sessions;
    struct session *session;

    if (!request->by_session)
        return;
    pthread_mutex_lock(&self->lock);
    session = find(self, request->session);
    if (session)
        drop(session);
    pthread_mutex_unlock(&self->lock);
    set_cookie(request, "", true);
    principal_put(request->principal);
    request->principal = NULL;
    request->by_session = false;
}

bool
http_session_confirm(struct http_request *request)
{
    struct credentials *all = request->http->server->credentials;
    const char *coded = MHD_lookup_connection_value(
        request->connection, MHD_HEADER_KIND, HTTP_SECRET_HEADER);
    const char *name = principal_name(request->principal);
    struct principal *again = NULL;
    char secret[1024];
    size_t len = 0;

    if (!request->by_session)
        return true;
    if (!coded)
        return http_fail(request, IDEM_PROBLEM_FORBIDDEN,
                         "a session must send the secret again for this, in "
                         "base64: " HTTP_SECRET_HEADER);
    if (sodium_base642bin((unsigned char *)secret, sizeof(secret), coded,
                          strlen(coded), NULL, &len, NULL,
                          sodium_base64_VARIANT_ORIGINAL) == 0)
        again = credentials_login(all, idem_text(name),
                                  (struct idem_bytes){secret, len});
    sodium_memzero(secret, sizeof(secret));
    principal_put(again);
    return again == request->principal ||
           http_wrong_secret(request, "the secret is wrong");
}

static json_t *
rights_of(const struct principal *principal)
{
    static const struct {
        unsigned act;
        const char *name;
    } acts[] = {{SERVER_MAY_MEASURE, "measure"},
                {SERVER_MAY_LOOK, "look"},
                {SERVER_MAY_LIST, "list"},
                {SERVER_MAY_USE, "use"},
                {SERVER_MAY_OPERATE, "operate"}};
    json_t *rights = json_array();

    for (size_t i = 0; principal && i < sizeof(acts) / sizeof(acts[0]); i++)
        if (principal_has(principal, acts[i].act))
            json_array_append_new(rights, json_string(acts[i].name));
    return rights;
}

json_t *
http_session_json(const struct http_request *request)
{
    const struct server *server = request->http->server;
    const struct principal *principal = request->principal;

    return json_pack(
        "{s:s, s:b, s:s, s:b, s:o, s:b, s:b, s:s}", "verdict", "session",
        "login", credentials_needed(server->credentials), "name",
        principal ? principal_name(principal) : "", "cookie",
        request->by_session, "rights", rights_of(principal), "reason",
        server->config->require_reason, "playground",
        server->config->playground != NULL, "version", IDEM_VERSION);
}
