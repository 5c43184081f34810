# bash completion for idem. Commands and options come from idem's own help, so
# they are always those of the installed version.

_idem_commands()
{
    idem --help 2>/dev/null | sed -n 's/^  \([a-z][a-z-]*\)  *.*/\1/p'
}

_idem_options()
{
    idem "$1" --help 2>/dev/null |
        sed -n 's/^  *\(-[a-z], \)\{0,1\}\(--[a-z][a-z-]*\).*/\2/p'
}

_idem()
{
    local word=${COMP_WORDS[COMP_CWORD]}
    local before=${COMP_WORDS[COMP_CWORD - 1]}
    local command=${COMP_WORDS[1]}

    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "$(_idem_commands) --help --version" -- "$word"))
        return
    fi
    if [ "$command" = help ]; then
        COMPREPLY=($(compgen -W "$(_idem_commands) exit-codes" -- "$word"))
        return
    fi
    case $before in
    --type | -t) COMPREPLY=($(compgen -W "request token lock worker" -- "$word")) ;;
    --state) COMPREPLY=($(compgen -W "issued executing succeeded failed free" -- "$word")) ;;
    --as | -a) COMPREPLY=($(compgen -W "succeeded failed" -- "$word")) ;;
    --kind | -k) COMPREPLY=($(compgen -W "raw http exec" -- "$word")) ;;
    --store | -s)
        COMPREPLY=($(compgen -W "memory: journal: sqlite: redis:// postgres:// mysql:// zookeeper:// etcd://" -- "$word"))
        ;;
    *)
        case $word in
        -*) COMPREPLY=($(compgen -W "$(_idem_options "$command")" -- "$word")) ;;
        *) COMPREPLY=($(compgen -f -- "$word")) ;;
        esac
        ;;
    esac
}

complete -o default -F _idem idem
