package idem

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	connectTime = 2 * time.Second
	replyTime   = 5 * time.Second
	idleMax     = 16
	longest     = 512 << 20
	trusted     = time.Second // after so long without an answer a connection is asked whether it is alive
)

var errStrange = errors.New("unexpected reply: is this an idem server?")

// broken: the connection failed. sent: the server may have got the command.
type broken struct {
	cause error
	sent  bool
}

func (e *broken) Error() string { return e.cause.Error() }

type address struct {
	network, where string
	secure         *tls.Config // nil: not encrypted
	hello          []any       // the first command on a connection
}

var (
	urlParts = regexp.MustCompile(`(?s)^(?:idem\+unix:(/?[^/?][^?]*)|(idems?)://(?:([^?]*)@)?(\[[^\]?]+\]|[^\[\]:/?@,]+)(?::([0-9]{1,5}))?(?:/[^?@]*)?)(?:\?(.*))?$`)
	hostPort = regexp.MustCompile(`^([^?]*@)?[^/?@]*:[0-9]+$`)
)

// partsOf takes what the command line takes for --server: unix:PATH, /PATH, HOST:PORT, or a URL, whose parts these are.
func partsOf(text string) ([]string, error) {
	given := text
	if path, is := cut(text, "unix:"); is || strings.HasPrefix(text, "/") {
		given = "idem+unix:" + path
	} else if !strings.Contains(text, "://") && !strings.HasPrefix(text, "idem+unix:") && hostPort.MatchString(text) {
		given = "idem://" + text
		if text[0] == ':' && !strings.Contains(text, "@") {
			given = "idem://127.0.0.1" + text
		}
	}
	if found := urlParts.FindStringSubmatch(given); found != nil {
		if found[5] == "" {
			found[5] = "6390"
		}
		if port, _ := strconv.Atoi(found[5]); port > 0 && port < 65536 {
			return found[1:], nil
		}
	}
	flaw := "not an address"
	if strings.HasPrefix(text, "http") {
		flaw = "the HTTP address of a server; clients need its socket or its RESP port"
	}
	shown := text[strings.LastIndex(text, "@")+1:] // without the secret
	return nil, fmt.Errorf("idem: \"%s\" is %s: give unix:PATH, HOST:PORT or idems://HOST:PORT", shown, flaw)
}

// parseAddress reads unix:PATH, HOST:PORT, idem://[name:secret@]host:port, idems://…?ca=FILE&cert=FILE&key=FILE or idem+unix:/path.
func parseAddress(text string) (*address, error) {
	if text == "" {
		text = os.Getenv("IDEM_SERVER")
	}
	if text == "" {
		text = "idem://127.0.0.1:6390"
	}
	parts, err := partsOf(text)
	if err != nil {
		return nil, err
	}
	path, scheme, user, host, port, query := parts[0], parts[1], parts[2], strings.Trim(parts[3], "[]"), parts[4], parts[5]
	a := &address{network: "tcp", where: net.JoinHostPort(host, port), hello: []any{"PING"}}
	if path != "" {
		a.network, a.where = "unix", path
	}
	secret, err := url.PathUnescape(user)
	if err == nil {
		err = a.encrypt(scheme == "idems", host, query)
	}
	if err != nil {
		return nil, fmt.Errorf("idem: %w", err)
	}
	if secret == "" {
		secret = os.Getenv("IDEM_AUTH")
	}
	if secret != "" {
		a.hello = []any{"AUTH"}
		for _, part := range strings.SplitN(secret, ":", 2) {
			a.hello = append(a.hello, part)
		}
	}
	return a, nil
}

// encrypt reads the options of idems://. An authority in the file ca (without it: one that this machine trusts) must have signed the
// server's certificate, for this host.
func (a *address) encrypt(secure bool, host, query string) error {
	files, err := url.ParseQuery(query)
	if err != nil {
		return err
	}
	for name := range files {
		if !secure || name != "ca" && name != "cert" && name != "key" {
			return fmt.Errorf("%q is not an option of an address: idems:// has ca, cert and key", name)
		}
	}
	if !secure {
		return nil
	}
	a.secure = &tls.Config{ServerName: host, MinVersion: tls.VersionTLS12}
	if file := files.Get("ca"); file != "" {
		pem, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		a.secure.RootCAs = x509.NewCertPool()
		if !a.secure.RootCAs.AppendCertsFromPEM(pem) {
			return fmt.Errorf("%s holds no certificate in PEM", file)
		}
	}
	if files.Has("cert") || files.Has("key") {
		own, err := tls.LoadX509KeyPair(files.Get("cert"), files.Get("key"))
		if err != nil {
			return err
		}
		a.secure.Certificates = []tls.Certificate{own}
	}
	return nil
}

func cut(text, prefix string) (string, bool) {
	return strings.TrimPrefix(text, prefix), strings.HasPrefix(text, prefix)
}

type connection struct {
	net.Conn
	reader   *bufio.Reader
	answered time.Time
}

// open connects and says hello. Nothing else is sent before the server has answered that.
func (a *address) open(end time.Time) (*connection, error) {
	if a.network == "unix" && len(a.hello) > 1 {
		info, err := os.Stat(a.where)
		if err != nil {
			return nil, err
		}
		if !isTrusted(info) { // do not send a secret to a socket that somebody else made
			return nil, fmt.Errorf("%s belongs to another user: no secret is sent to it", a.where)
		}
	}
	raw, err := (&net.Dialer{Deadline: sooner(end, connectTime)}).Dial(a.network, a.where)
	if err != nil {
		return nil, err
	}
	if a.secure != nil {
		raw = tls.Client(raw, a.secure) // the first write shakes hands
	}
	c := &connection{Conn: raw, reader: bufio.NewReader(raw)}
	answer, err := c.call(a.hello, sooner(end, replyTime))
	if refused, is := answer.(*Refused); is && strings.Contains(refused.Text, "max number of clients") {
		err = errors.New(refused.Text) // it may have room for us soon
	} else if is {
		err = refused
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func sooner(end time.Time, limit time.Duration) time.Time {
	if other := time.Now().Add(limit); other.Before(end) {
		return other
	}
	return end
}

func (c *connection) call(args []any, end time.Time) (any, error) {
	c.SetDeadline(end)
	out := append(strconv.AppendInt(append(make([]byte, 0, 512), '*'), int64(len(args)), 10), "\r\n"...)
	for _, arg := range args {
		text := ""
		switch v := arg.(type) {
		case []byte:
			out = append(strconv.AppendInt(append(out, '$'), int64(len(v)), 10), "\r\n"...)
			out = append(append(out, v...), "\r\n"...)
			continue
		case string:
			text = v
		default:
			text = fmt.Sprint(v)
		}
		out = append(strconv.AppendInt(append(out, '$'), int64(len(text)), 10), "\r\n"...)
		out = append(append(out, text...), "\r\n"...)
	}
	if _, err := c.Write(out); err != nil {
		return nil, err
	}
	answer, err := c.read()
	c.answered = time.Now()
	return answer, err
}

// read gives []any, []byte (nil for null), int64 or *Refused.
func (c *connection) read() (any, error) {
	line, err := c.reader.ReadString('\n')
	if err != nil {
		return nil, err
	}
	if len(line) < 3 || !strings.HasSuffix(line, "\r\n") {
		return nil, errStrange
	}
	text := line[1 : len(line)-2]
	switch line[0] {
	case '+':
		return []byte(text), nil
	case '-':
		word, rest, _ := strings.Cut(text, " ")
		return &Refused{word, rest}, nil
	}
	number, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return nil, errStrange
	}
	switch line[0] {
	case ':':
		return number, nil
	case '$':
		if number < 0 {
			return []byte(nil), nil
		}
		if number > longest {
			return nil, errStrange
		}
		data := make([]byte, number+2)
		_, err := io.ReadFull(c.reader, data)
		return data[:number], err
	case '*':
		if number < 0 || number > longest {
			return nil, errStrange
		}
		items := make([]any, number)
		for i := range items {
			if items[i], err = c.read(); err != nil {
				return nil, err
			}
		}
		return items, nil
	}
	return nil, errStrange
}

// pool keeps connections; each serves one call at a time.
type pool struct {
	address *address
	lock    sync.Mutex
	idle    []*connection
	closed  bool
}

func (p *pool) pop() *connection {
	p.lock.Lock()
	defer p.lock.Unlock()
	n := len(p.idle)
	if n == 0 {
		return nil
	}
	c := p.idle[n-1]
	p.idle = p.idle[:n-1]
	return c
}

// take gives a connection that has answered not long ago. A command is sent to no other, for what was sent may have been carried out.
func (p *pool) take(end time.Time) (*connection, error) {
	for c := p.pop(); c != nil; c = p.pop() {
		if time.Since(c.answered) < trusted {
			return c, nil
		}
		if _, err := c.call([]any{"PING"}, sooner(end, connectTime)); err == nil {
			return c, nil
		}
		c.Close()
		p.drop() // the others are of the same age and likely broken too
	}
	return p.address.open(end)
}

// call gives the values of an answer, for which it waits until then; the error is *Refused or *broken.
func (p *pool) call(args []any, end time.Time) ([]any, error) {
	c, err := p.take(end)
	if err != nil {
		var refused *Refused
		if errors.As(err, &refused) {
			return nil, refused
		}
		return nil, &broken{err, false}
	}
	answer, err := c.call(args, end)
	if err != nil {
		c.Close()
		p.drop()
		return nil, &broken{err, true}
	}
	p.lock.Lock()
	if len(p.idle) < idleMax && !p.closed {
		p.idle = append(p.idle, c)
		c = nil
	}
	p.lock.Unlock()
	if c != nil {
		c.Close()
	}
	switch told := answer.(type) {
	case *Refused:
		return nil, told
	case []any:
		return told, nil
	}
	return []any{answer}, nil
}

func (p *pool) close() {
	p.lock.Lock()
	p.closed = true
	p.lock.Unlock()
	p.drop()
}

func (p *pool) drop() {
	p.lock.Lock()
	idle := p.idle
	p.idle = nil
	p.lock.Unlock()
	for _, c := range idle {
		c.Close()
	}
}
