/*
 * credentials.c - the credentials file, logins and rights; see credentials.h.
 */
#include "credentials.h"

#include "../../record/record.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sodium.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define HASH_LEN 32
#define NAME_MAX_LEN 64
#define CERTIFICATE_MAX_LEN 64 /* the limit of X.520 */
#define SCOPES_MAX 64
#define FILE_MAX (1024 * 1024)
#define WRONG_COSTS_MS 100 /* up to ten wrong secrets a second add no delay */
#define LATE_MAX_MS 5000
#define RIGHTS "monitor|view|use|operate"

struct principal {
    struct principal *next;
    atomic_int refs;
    atomic_bool revoked;
    atomic_size_t held; /* bytes of replies not yet read */
    enum server_right right;
    uint8_t hash[HASH_LEN];
    char name[NAME_MAX_LEN + 1];
    char certificate[CERTIFICATE_MAX_LEN + 1]; /* its common name; "": none */
    size_t scope_count;                        /* 0: every scope */
    char *scopes[SCOPES_MAX];
};

struct credentials {
    char *file;
    pthread_mutex_t mutex;
    struct principal *list; /* under the mutex */
    struct principal *anyone, *owner;
    _Atomic int64_t paid_ms; /* from then on, wrong secrets are not delayed */
};

/* ---- principals ------------------------------------------------------ */

struct principal *
principal_ref(struct principal *principal)
{
    atomic_fetch_add(&principal->refs, 1);
    return principal;
}

void
principal_put(struct principal *principal)
{
    if (!principal || atomic_fetch_sub(&principal->refs, 1) != 1)
        return;
    for (size_t i = 0; i < principal->scope_count; i++)
        free(principal->scopes[i]);
    free(principal);
}

const char *
principal_name(const struct principal *principal)
{
    return principal->name;
}

bool
principal_hold(struct principal *principal, size_t len, size_t share)
{
    size_t before = principal ? atomic_fetch_add(&principal->held, len) : 0;

    if (before == 0 || before + len <= share)
        return true;
    principal_unhold(principal, len);
    return false;
}

void
principal_unhold(struct principal *principal, size_t len)
{
    if (principal)
        atomic_fetch_sub(&principal->held, len);
}

bool
principal_valid(const struct principal *principal)
{
    return !atomic_load_explicit(&principal->revoked, memory_order_acquire);
}

bool
principal_has(const struct principal *principal, unsigned act)
{
    return principal_valid(principal) && (principal->right & act) == act;
}

bool
principal_may(const struct principal *principal, unsigned act,
              struct idem_bytes scope)
{
    if (!principal_has(principal, act))
        return false;
    for (size_t i = 0; i < principal->scope_count; i++) {
        if (idem__bytes_equal(scope, idem_text(principal->scopes[i])))
            return true;
    }
    return principal->scope_count == 0;
}

static bool
same_principal(const struct principal *a, const struct principal *b)
{
    if (strcmp(a->name, b->name) != 0 || a->right != b->right ||
        strcmp(a->certificate, b->certificate) != 0 ||
        memcmp(a->hash, b->hash, HASH_LEN) != 0 ||
        a->scope_count != b->scope_count)
        return false;
    for (size_t i = 0; i < a->scope_count; i++) {
        if (strcmp(a->scopes[i], b->scopes[i]) != 0)
            return false;
    }
    return true;
}

static void
drop_list(struct principal *list)
{
    while (list) {
        struct principal *next = list->next;

        principal_put(list);
        list = next;
    }
}

/* ---- the file -------------------------------------------------------- */

/* The next word of a line; empty at its end or at a comment. */
static struct idem_bytes
next_word(const char **at, const char *end)
{
    const char *start;

    while (*at < end && (**at == ' ' || **at == '\t' || **at == '\r'))
        (*at)++;
    start = *at;
    if (*at < end && **at == '#') {
        *at = end;
        return (struct idem_bytes){NULL, 0};
    }
    while (*at < end && **at != ' ' && **at != '\t' && **at != '\r')
        (*at)++;
    return (struct idem_bytes){start, (size_t)(*at - start)};
}

/* "cert:NAME"; false: the text is not of this form. */
static bool
read_certificate(struct idem_bytes word, struct principal *p, const char **flaw)
{
    static const char mark[] = "cert:";
    size_t mark_len = sizeof(mark) - 1;

    if (word.len < mark_len || memcmp(word.data, mark, mark_len) != 0)
        return false;
    word.data = (const char *)word.data + mark_len;
    word.len -= mark_len;
    if (word.len == 0 || word.len > CERTIFICATE_MAX_LEN ||
        memchr(word.data, 0, word.len))
        *flaw = "cert: is followed by a common name of 1 to 64 bytes";
    else
        memcpy(p->certificate, word.data, word.len);
    return true;
}

static bool
read_secret(struct idem_bytes word, uint8_t hash[HASH_LEN])
{
    static const char mark[] = "{blake2b}";
    size_t mark_len = sizeof(mark) - 1, got = 0;
    const char *hex = (const char *)word.data + mark_len;

    if (word.len < mark_len || memcmp(word.data, mark, mark_len) != 0) {
        crypto_generichash(hash, HASH_LEN, word.data, word.len, NULL, 0);
        return true;
    }
    return word.len == mark_len + 2 * HASH_LEN &&
           sodium_hex2bin(hash, HASH_LEN, hex, 2 * HASH_LEN, NULL, &got,
                          NULL) == 0 &&
           got == HASH_LEN;
}

static bool
read_name(struct idem_bytes word, char name[NAME_MAX_LEN + 1])
{
    const uint8_t *bytes = word.data;

    if (word.len == 0 || word.len > NAME_MAX_LEN)
        return false;
    for (size_t i = 0; i < word.len; i++) {
        if (!isgraph(bytes[i]) || bytes[i] == ':')
            return false;
    }
    memcpy(name, bytes, word.len);
    name[word.len] = '\0';
    return true;
}

static const char *
read_scopes(struct principal *p, const char *at, const char *end)
{
    struct idem_bytes word;

    while ((word = next_word(&at, end)).len > 0) {
        if (p->scope_count == SCOPES_MAX)
            return "more than 64 scopes";
        if (word.len > IDEM_SCOPE_MAX || memchr(word.data, '\0', word.len))
            return "a scope has 1 to 200 bytes and no NUL";
        p->scopes[p->scope_count] = strndup(word.data, word.len);
        if (!p->scopes[p->scope_count])
            return "out of memory";
        p->scope_count++;
    }
    return NULL;
}

static bool
read_right(struct idem_bytes word, enum server_right *right)
{
#define X(name, text, acts)                                                    \
    if (idem__bytes_is(word, text))                                            \
        return *right = SERVER_##name, true;
    SERVER_RIGHT_MAP(X)
#undef X
    return false;
}

/* Returns NULL, or what is wrong. The text never repeats the line, because the
 * line contains a secret. */
static const char *
read_line(struct principal *p, const char *at, const char *end)
{
    struct idem_bytes name = next_word(&at, end);
    struct idem_bytes secret = next_word(&at, end);
    struct idem_bytes right = next_word(&at, end);
    const char *flaw = NULL;

    if (!read_name(name, p->name))
        return "a name has 1 to 64 visible characters and no colon";
    if (secret.len == 0)
        return "give: name secret " RIGHTS " [scope ...]";
    if (read_certificate(secret, p, &flaw)) {
        if (flaw)
            return flaw;
    } else if (!read_secret(secret, p->hash))
        return "{blake2b} is followed by 64 hex digits";
    if (!read_right(right, &p->right))
        return "the third word is a right: " RIGHTS;
    return read_scopes(p, at, end);
}

static struct principal *
new_principal(void)
{
    struct principal *p = calloc(1, sizeof(*p));

    if (p)
        atomic_init(&p->refs, 1);
    return p;
}

static struct principal *
find_certificate(struct principal *list, const char *common_name)
{
    while (list &&
           (!*common_name || strcmp(list->certificate, common_name) != 0))
        list = list->next;
    return list;
}

static bool
has_name(const struct principal *list, const char *name)
{
    for (; list; list = list->next) {
        if (strcmp(list->name, name) == 0)
            return true;
    }
    return false;
}

static enum idem_status
read_list(const char *file, struct idem_bytes text, struct principal **list,
          struct idem_error *err)
{
    const char *at = text.data, *all_end = at + text.len;
    const char *flaw = NULL;
    size_t number = 0;

    *list = NULL;
    while (at < all_end && !flaw) {
        const char *end = memchr(at, '\n', (size_t)(all_end - at));
        const char *start = at, *peek = at;
        struct principal *p;

        end = end ? end : all_end;
        at = end + 1;
        number++;
        if (next_word(&peek, end).len == 0)
            continue;
        p = new_principal();
        flaw = p ? read_line(p, start, end) : "out of memory";
        if (p && !flaw && has_name(*list, p->name))
            flaw = "this name is on two lines; remove one of them";
        if (p && !flaw && find_certificate(*list, p->certificate))
            flaw = "this certificate is on two lines; remove one of them";
        if (flaw) {
            principal_put(p);
        } else {
            p->next = *list;
            *list = p;
        }
    }
    if (!flaw && *list)
        return IDEM_OK;
    drop_list(*list);
    if (!flaw)
        return idem__fail(
            err, IDEM_ERR_INVALID,
            "%s: holds no credential; a line is: name secret " RIGHTS
            " [scope ...]",
            file);
    return idem__fail(err, IDEM_ERR_INVALID, "%s: line %zu: %s", file, number,
                      flaw);
}

enum idem_status
credentials_text(struct credentials *credentials, const char *file,
                 struct idem_bytes text, struct idem_error *err)
{
    struct principal *list, *old;
    enum idem_status status = read_list(file, text, &list, err);

    if (status != IDEM_OK)
        return status;
    pthread_mutex_lock(&credentials->mutex);
    old = credentials->list;
    credentials->list = list;
    /* A principal whose line did not change stays logged in. */
    for (struct principal **at = &credentials->list; *at; at = &(*at)->next) {
        for (struct principal **was = &old; *was; was = &(*was)->next) {
            if (same_principal(*at, *was)) {
                struct principal *kept = *was, *fresh = *at;

                *was = kept->next;
                kept->next = fresh->next;
                *at = kept;
                principal_put(fresh);
                break;
            }
        }
    }
    for (struct principal *p = old; p; p = p->next)
        atomic_store_explicit(&p->revoked, true, memory_order_release);
    pthread_mutex_unlock(&credentials->mutex);
    drop_list(old);
    return IDEM_OK;
}

static enum idem_status
read_fd(struct credentials *credentials, int fd, struct idem_error *err)
{
    struct stat stat;
    enum idem_status status;
    char *text;
    ssize_t len;

    if (fstat(fd, &stat) != 0 || !S_ISREG(stat.st_mode))
        return idem__fail(err, IDEM_ERR_INVALID, "%s: not a file",
                          credentials->file);
    if (stat.st_mode & S_IRWXO)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "%s: every user can read it; run: chmod o= %s",
                          credentials->file, credentials->file);
    if (stat.st_size > FILE_MAX)
        return idem__fail(err, IDEM_ERR_INVALID, "%s: over 1 MiB",
                          credentials->file);
    text = malloc((size_t)stat.st_size + 1);
    if (!text)
        return idem__fail(err, IDEM_ERR_MEMORY, "out of memory");
    len = read(fd, text, (size_t)stat.st_size);
    status =
        len < 0 ? idem__fail(err, IDEM_ERR_INVALID, "%s: %s", credentials->file,
                             strerror(errno))
                : credentials_text(credentials, credentials->file,
                                   (struct idem_bytes){text, (size_t)len}, err);
    sodium_memzero(text, (size_t)stat.st_size);
    free(text);
    return status;
}

enum idem_status
credentials_reread(struct credentials *credentials, struct idem_error *err)
{
    enum idem_status status;
    int fd;

    if (!credentials->file)
        return IDEM_OK;
    fd = open(credentials->file, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "cannot read the credentials file %s: %s; correct "
                          "--credentials or make the file readable for the "
                          "server",
                          credentials->file, strerror(errno));
    status = read_fd(credentials, fd, err);
    close(fd);
    return status;
}

/* ---- opening and logging in ------------------------------------------ */

enum idem_status
credentials_open(const char *file, struct credentials **credentials,
                 struct idem_error *err)
{
    struct credentials *self = calloc(1, sizeof(*self));
    enum idem_status status;

    if (sodium_init() < 0 || !self || !(self->anyone = new_principal()) ||
        !(self->owner = new_principal()) ||
        (file && !(self->file = strdup(file)))) {
        credentials_close(self);
        return idem__fail(err, IDEM_ERR_MEMORY, "out of memory");
    }
    pthread_mutex_init(&self->mutex, NULL);
    self->anyone->right = SERVER_USE;
    snprintf(self->anyone->name, sizeof(self->anyone->name), "anyone");
    self->owner->right = SERVER_OPERATE;
    snprintf(self->owner->name, sizeof(self->owner->name), "owner");
    status = credentials_reread(self, err);
    if (status != IDEM_OK) {
        credentials_close(self);
        return status;
    }
    *credentials = self;
    return IDEM_OK;
}

void
credentials_close(struct credentials *credentials)
{
    if (!credentials)
        return;
    drop_list(credentials->list);
    principal_put(credentials->anyone);
    principal_put(credentials->owner);
    pthread_mutex_destroy(&credentials->mutex);
    free(credentials->file);
    free(credentials);
}

bool
credentials_needed(const struct credentials *credentials)
{
    return credentials->file != NULL;
}

struct principal *
credentials_anyone(struct credentials *credentials, enum server_right right)
{
    return principal_ref(right == SERVER_OPERATE ? credentials->owner
                                                 : credentials->anyone);
}

struct principal *
credentials_login(struct credentials *credentials, struct idem_bytes name,
                  struct idem_bytes secret)
{
    static const uint8_t nobody[HASH_LEN];
    struct principal *found = NULL;
    uint8_t hash[HASH_LEN];
    bool right;

    if (name.len == 0)
        name = idem_text("default");
    crypto_generichash(hash, sizeof(hash), secret.data, secret.len, NULL, 0);
    pthread_mutex_lock(&credentials->mutex);
    for (struct principal *p = credentials->list; p; p = p->next) {
        if (idem__bytes_equal(name, idem_text(p->name)))
            found = p;
    }
    /* Compare in any case, so that an unknown name takes as long as a wrong
     * secret. */
    right = sodium_memcmp(hash, found ? found->hash : nobody, HASH_LEN) == 0;
    right = right && found && !*found->certificate;
    found = right ? principal_ref(found) : NULL;
    pthread_mutex_unlock(&credentials->mutex);
    sodium_memzero(hash, sizeof(hash));
    return found;
}

struct principal *
credentials_certificate(struct credentials *credentials,
                        const char *common_name)
{
    struct principal *found;

    pthread_mutex_lock(&credentials->mutex);
    found = find_certificate(credentials->list, common_name);
    found = found ? principal_ref(found) : NULL;
    pthread_mutex_unlock(&credentials->mutex);
    return found;
}

int64_t
credentials_late_ms(struct credentials *credentials, int64_t now_ms,
                    int64_t least_ms)
{
    int64_t old = atomic_load(&credentials->paid_ms), paid_ms;

    do {
        paid_ms = (old > now_ms ? old : now_ms) + WRONG_COSTS_MS;
        if (paid_ms > now_ms + LATE_MAX_MS)
            paid_ms = now_ms + LATE_MAX_MS;
    } while (
        !atomic_compare_exchange_weak(&credentials->paid_ms, &old, paid_ms));
    return paid_ms - now_ms > least_ms ? paid_ms - now_ms : least_ms;
}
