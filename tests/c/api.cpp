// api.cpp - the C API as a C++ program uses it: every public header, and work
// that runs once. Prints "ran" and then "replayed".
#include <idem/idem.h>

#include <cstdio>
#include <string>

namespace
{

idem_state
greet(void *arg, uint64_t fence, idem_bytes *result)
{
    auto *text = static_cast<std::string *>(arg);

    *text = "fence " + std::to_string(fence > 0);
    *result = idem_bytes{text->data(), text->size()};
    return IDEM_STATE_SUCCEEDED;
}

} // namespace

int
main()
{
    idem_engine *engine = nullptr;
    idem_error err{};
    idem_op op{};
    std::string text;

    if (idem_open("memory:", nullptr, &engine, &err) != IDEM_OK) {
        std::fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    op.scope = idem_text("c++");
    op.id = idem_text("1");
    for (int i = 0; i < 2; i++) {
        idem_answer answer{};

        if (idem_run(engine, &op, greet, &text, &answer, &err) != IDEM_OK) {
            std::fprintf(stderr, "%s\n", err.text);
            return 1;
        }
        std::printf("%s\n",
                    answer.verdict == IDEM_V_STARTED ? "ran" : "replayed");
        idem_answer_clear(&answer);
    }
    idem_close(engine);
    return 0;
}
