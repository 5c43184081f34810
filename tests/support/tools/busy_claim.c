/*
 * busy_claim.c - what does a transaction hear that claims A, and then B, which
 * another transaction has claimed?
 *
 *   busy_claim SOCKET DATABASE     prints a verdict or the kind of the error
 */
#include <idem/sql.h>

#include <mysql.h>
#include <stdio.h>

int
main(int argc, char **argv)
{
    MYSQL *conn = mysql_init(NULL);
    struct idem_op op = {.verb = IDEM_BEGIN, .scope = idem_text("pay")};
    struct idem_answer answer;
    struct idem_error err;
    struct idem_sql *db;

    if (argc != 3 ||
        !mysql_real_connect(conn, NULL, "root", NULL, argv[2], 0, argv[1], 0))
        return 1;
    if (idem_sql_mysql(conn, &db, &err) != IDEM_OK ||
        mysql_autocommit(conn, 0) != 0)
        return 1;
    for (const char *id = "A"; *id; id = *id == 'A' ? "B" : "") {
        op.id = idem_text(id);
        if (idem_sql_claim(db, &op, &answer, &err) == IDEM_OK)
            printf("%s\n", idem_verdict_name(answer.verdict));
        else
            printf("%s: %s\n", idem_sql_cause_name(idem_sql_fault(db)->cause),
                   err.text);
        idem_answer_clear(&answer);
    }
    idem_sql_close(db);
    mysql_close(conn);
    return 0;
}
