package idem

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
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
	trusted     = time.Second // after so long without use a connection is asked whether it is alive
)

// broken: the connection failed. sent: the server may have got the command.
type broken struct {
	cause error
	sent  bool
}

func (e *broken) Error() string { return e.cause.Error() }

type address struct {
	network, where string
	auth           []any
}

// parseAddress reads idem://[name:secret@]host:port or idem+unix:/path.
func parseAddress(text string) (*address, error) {
	if text == "" {
		text = os.Getenv("IDEM_SERVER")
	}
	if text == "" {
		text = "idem://127.0.0.1:6390"
	}
	secret := os.Getenv("IDEM_AUTH")
	a := &address{network: "tcp"}
	if path, is := cut(text, "idem+unix:"); is {
		a.network, a.where = "unix", path
	} else {
		u, err := url.Parse(text)
		if err != nil || u.Scheme != "idem" {
			return nil, errors.New("an address is idem://host:port or idem+unix:/path")
		}
		host, port := u.Hostname(), u.Port()
		if host == "" {
			host = "127.0.0.1"
		}
		if port == "" {
			port = "6390"
		}
		a.where = net.JoinHostPort(host, port)
		if u.User != nil {
			secret = u.User.Username()
			if password, set := u.User.Password(); set {
				secret += ":" + password
			}
		}
	}
	if secret != "" {
		a.auth = []any{"AUTH"}
		for _, part := range strings.SplitN(secret, ":", 2) {
			a.auth = append(a.auth, part)
		}
	}
	return a, nil
}

func cut(text, prefix string) (string, bool) {
	return strings.TrimPrefix(text, prefix), strings.HasPrefix(text, prefix)
}

type connection struct {
	net.Conn
	reader *bufio.Reader
	used   time.Time
}

func (a *address) open(limit time.Duration) (*connection, error) {
	if a.network == "unix" && a.auth != nil {
		info, err := os.Stat(a.where)
		if err != nil {
			return nil, err
		}
		if !isTrusted(info) { // do not send a secret to a socket that somebody else made
			return nil, fmt.Errorf("%s belongs to another user: no secret is sent to it", a.where)
		}
	}
	raw, err := net.DialTimeout(a.network, a.where, least(limit, connectTime))
	if err != nil {
		return nil, err
	}
	c := &connection{Conn: raw, reader: bufio.NewReader(raw)}
	if a.auth != nil {
		answer, err := c.call(a.auth, least(limit, replyTime))
		if refused, is := answer.(*Refused); is {
			err = refused
		}
		if err != nil {
			c.Close()
			return nil, err
		}
	}
	return c, nil
}

func least(a, b time.Duration) time.Duration {
	if a < b {
		return a
	}
	return b
}

// isAlive: a server that went away has closed the connection, and reading says so at once.
func (c *connection) isAlive() bool {
	c.SetReadDeadline(time.Now().Add(time.Millisecond))
	_, err := c.reader.Peek(1)
	var waited net.Error
	return errors.As(err, &waited) && waited.Timeout()
}

func (c *connection) call(args []any, limit time.Duration) (any, error) {
	c.SetDeadline(time.Now().Add(limit))
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
	return c.read()
}

// read gives []any, []byte (nil for null), int64 or *Refused.
func (c *connection) read() (any, error) {
	line, err := c.reader.ReadString('\n')
	if err != nil {
		return nil, err
	}
	if len(line) < 3 || !strings.HasSuffix(line, "\r\n") {
		return nil, errors.New("unexpected reply: is this an idem server?")
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
		return nil, errors.New("unexpected reply: is this an idem server?")
	}
	switch line[0] {
	case ':':
		return number, nil
	case '$':
		if number < 0 {
			return []byte(nil), nil
		}
		if number > longest {
			return nil, errors.New("unexpected reply: is this an idem server?")
		}
		data := make([]byte, number+2)
		_, err := io.ReadFull(c.reader, data)
		return data[:number], err
	case '*':
		if number < 0 || number > longest {
			return nil, errors.New("unexpected reply: is this an idem server?")
		}
		items := make([]any, number)
		for i := range items {
			if items[i], err = c.read(); err != nil {
				return nil, err
			}
		}
		return items, nil
	}
	return nil, errors.New("unexpected reply: is this an idem server?")
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

func (p *pool) take(limit time.Duration) (*connection, error) {
	for c := p.pop(); c != nil; c = p.pop() {
		if time.Since(c.used) < trusted || c.isAlive() {
			return c, nil
		}
		c.Close()
	}
	return p.address.open(limit)
}

// call gives the values of an answer, for which it waits so long; the error is *Refused or *broken.
func (p *pool) call(args []any, limit time.Duration) ([]any, error) {
	c, err := p.take(limit)
	if err != nil {
		var refused *Refused
		if errors.As(err, &refused) {
			return nil, refused
		}
		return nil, &broken{err, false}
	}
	answer, err := c.call(args, limit)
	if err != nil {
		c.Close()
		p.drop() // the others are of the same age and likely broken too
		return nil, &broken{err, true}
	}
	c.used = time.Now()
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
