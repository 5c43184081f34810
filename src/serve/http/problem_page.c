/*
 * problem_page.c - show a section of docs/problems.md (or of its Chinese
 * version) as an HTML page.
 *
 * The two files are part of the program, so the page and the manual have the
 * same text. tests/system/test_problems.py compares the manual with the table
 * in problem.h.
 */
#include "problem_page.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MANUAL(name, file)                                                     \
    extern const char name[];                                                  \
    __asm__(".pushsection .rodata\n"                                           \
            ".global " #name "\n.hidden " #name "\n" #name ":\n"               \
            ".incbin \"" file "\"\n.byte 0\n"                                  \
            ".popsection\n")

MANUAL(problem_manual, "docs/problems.md");
MANUAL(problem_manual_zh, "docs/problems.zh-CN.md");

static const struct language {
    const char *code, *manual, *what, *todo, *retry, *no_retry;
} english = {"en",
             problem_manual,
             "What happened: ",
             "What to do: ",
             "Retry: yes. Send the same request again, after the time in "
             "Retry-After if the response has this header.",
             "Retry: no, unless the response says \"retryable\": true."},
  chinese = {"zh-CN",
             problem_manual_zh,
             "发生了什么：",
             "怎么做：",
             "可以重试：原样重发同一个请求；响应带有 Retry-After "
             "时，等到它给出的时间之后再发。",
             "不要重试，除非响应中 \"retryable\" 为 true。"};

struct problem_page {
    char *at, *end;
};

static void
put(struct problem_page *page, const char *text, size_t len)
{
    size_t room = (size_t)(page->end - page->at);

    if (len > room)
        len = room;
    memcpy(page->at, text, len);
    page->at += len;
}

static void
put_text(struct problem_page *page, const char *text)
{
    put(page, text, strlen(text));
}

/* Converts the Markdown that the manual uses: paragraphs, `code` and
 * [links](...). */
static void
put_markdown(struct problem_page *page, const char *at, const char *end)
{
    bool code = false;

    for (; at < end; at++) {
        const char *link =
            *at == ']' ? memchr(at, ')', (size_t)(end - at)) : NULL;

        if (*at == '`') {
            put_text(page, code ? "</code>" : "<code>");
            code = !code;
        } else if (*at == '\n' && at + 1 < end && at[1] == '\n')
            put_text(page, "</p>\n<p>");
        else if (*at == '&')
            put_text(page, "&amp;");
        else if (*at == '<')
            put_text(page, "&lt;");
        else if (link && at[1] == '(')
            at = link; /* keep the text, drop the target */
        else if (*at != '[')
            put(page, at, 1);
    }
}

/* The text after a heading or the name of a row, up to `stop`. */
static void
put_section(struct problem_page *page, const char *manual, const char *head,
            const char *stop)
{
    const char *from = strstr(manual, head), *to;

    if (!from)
        return;
    from += strlen(head);
    to = strstr(from, stop);
    put_markdown(page, from, to ? to : from + strlen(from));
}

static void
put_class(struct problem_page *page, const struct language *language,
          const char *name)
{
    char head[64];
    const char *row, *cell;

    snprintf(head, sizeof(head), "\n| %s | ", name);
    row = strstr(language->manual, head);
    cell = row ? strstr(row + strlen(head), " | ") : NULL;
    if (!cell)
        return;
    row += strlen(head);
    put_text(page, "<p>");
    put_text(page, language->what);
    put_markdown(page, row, cell);
    put_text(page, "</p>\n<p>");
    put_text(page, language->todo);
    put_markdown(page, cell + 3, strstr(cell + 3, " |"));
    put_text(page, "</p>\n");
}

/* A weight from 0 to 1, parsed from text of the client. */
static int
thousandths(const char *text)
{
    double weight = strtod(text, NULL);

    return weight > 0 && weight <= 1 ? (int)(weight * 1000) : 0;
}

/* The weight of a language in Accept-Language, in thousandths; 0: not named.
 * `place` is its position in the list. */
static int
weight_of(const char *list, const char *code, size_t *place)
{
    const char *found = list;

    while ((found = strcasestr(found, code))) {
        const char *end = found + strcspn(found, ",");
        const char *q = strstr(found, "q=");

        *place = (size_t)(found - list);
        if ((found == list || strchr(" ,\t", found[-1])) &&
            strchr("-;, \t", found[strlen(code)]))
            return q && q < end ? thousandths(q + 2) : 1000;
        found++;
    }
    return 0;
}

static const struct language *
choose(struct idem_bytes languages)
{
    char list[256];
    size_t zh_at = 0, en_at = 0;
    int zh, en;

    snprintf(list, sizeof(list), "%.*s", (int)languages.len,
             languages.len > 0 ? (const char *)languages.data : "");
    zh = weight_of(list, "zh", &zh_at);
    en = weight_of(list, "en", &en_at);
    return zh > en || (zh > 0 && zh == en && zh_at < en_at) ? &chinese
                                                            : &english;
}

bool
problem_page_find(struct idem_bytes name, enum idem__problem *problem)
{
    for (int i = 0; i < IDEM_PROBLEM_COUNT; i++) {
        const char *word = idem__problem_type(i)->name;

        if (name.len == strlen(word) &&
            memcmp(name.data, word, name.len) == 0) {
            *problem = (enum idem__problem)i;
            return true;
        }
    }
    return false;
}

size_t
problem_page(enum idem__problem problem, struct idem_bytes languages,
             char text[PROBLEM_PAGE_MAX])
{
    const struct idem__problem_type *type = idem__problem_type(problem);
    const struct language *language = choose(languages);
    struct problem_page page = {text, text + PROBLEM_PAGE_MAX};
    char head[512];

    snprintf(head, sizeof(head),
             "<!DOCTYPE html>\n<html lang=\"%s\"><head><meta charset=\"utf-8\">"
             "<title>%s - idem</title></head>\n<body><h1>%s</h1>\n"
             "<p lang=\"en\"><b>%s.</b></p>\n<p>",
             language->code, type->name, type->name, type->title);
    put_text(&page, head);
    snprintf(head, sizeof(head), "\n### %s\n\n", type->name);
    put_section(&page, language->manual, head, "\n\n#");
    put_text(&page, "</p>\n");
    put_class(&page, language, idem__class_name(type->class));
    put_text(&page, "<p>");
    put_text(&page, type->retryable ? language->retry : language->no_retry);
    put_text(&page, "</p>\n</body></html>\n");
    return (size_t)(page.at - text);
}

bool
problem_base_ok(struct idem_bytes base)
{
    const char *text = base.data;

    for (size_t i = 0; i < base.len; i++)
        if (text[i] <= ' ' || text[i] > '~' || strchr("\"\\<>'$;{}", text[i]))
            return false;
    return base.len > 0 && base.len <= 1000 &&
           (text[base.len - 1] == '/' || text[base.len - 1] == '#');
}
