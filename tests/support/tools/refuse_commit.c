/*
 * refuse_commit.c - a Galera node that reports a commit which it has made as
 * refused (1213): loaded into idem (LD_PRELOAD). If the file $REFUSE_COMMIT
 * exists, the next batch that changes one kind of rows is committed, the file
 * gets the end ".made", and as soon as that is removed the commit fails.
 */
#include <dlfcn.h>
#include <mysql.h>
#include <mysqld_error.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static _Thread_local bool changes, refused;

/* The library was loaded by a module, so RTLD_NEXT does not find it. */
static void *
real(const char *name)
{
    static void *library;

    if (!library)
        library = dlopen("libmariadb.so.3", RTLD_LAZY);
    return library ? dlsym(library, name) : NULL;
}

int STDCALL
mysql_real_query(MYSQL *conn, const char *query, unsigned long len)
{
    static int (*send)(MYSQL *, const char *, unsigned long);

    if (!send)
        *(void **)&send = real("mysql_real_query");
    refused = false;
    changes = memmem(query, len, "on duplicate key update", 23) != NULL;
    return send(conn, query, len);
}

int STDCALL
mysql_next_result(MYSQL *conn)
{
    static int (*next)(MYSQL *);
    const char *flag = getenv("REFUSE_COMMIT");
    char made[512];
    int more;

    if (!next)
        *(void **)&next = real("mysql_next_result");
    more = next(conn);
    snprintf(made, sizeof(made), "%s.made", flag ? flag : "");
    if (more != 0 || !changes || !flag || rename(flag, made) != 0)
        return more;
    while (access(made, F_OK) == 0)
        usleep(2000);
    refused = true;
    return 1;
}

unsigned int STDCALL
mysql_errno(MYSQL *conn)
{
    static unsigned int (*number)(MYSQL *);

    if (!number)
        *(void **)&number = real("mysql_errno");
    return refused ? ER_LOCK_DEADLOCK : number(conn);
}
