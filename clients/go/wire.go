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
	"syscall"
	"time"
)

const (
	connectTime = 2 * time.Second
	replyTime   = 5 * time.Second
	idleMax     = 16
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
}

func (a *address) open() (*connection, error) {
	if a.network == "unix" && a.auth != nil {
		// Do not send a secret to a socket that somebody else made.
		info, err := os.Stat(a.where)
		if err != nil {
			return nil, err
		}
		if s, ok := info.Sys().(*syscall.Stat_t); ok && s.Uid != 0 && int(s.Uid) != os.Geteuid() {
			return nil, fmt.Errorf("%s belongs to another user: no secret is sent to it", a.where)
		}
	}
	raw, err := net.DialTimeout(a.network, a.where, connectTime)
	if err != nil {
		return nil, err
	}
	c := &connection{raw, bufio.NewReader(raw)}
	if a.auth != nil {
		answer, err := c.call(a.auth, 0)
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

func (c *connection) call(args []any, wait time.Duration) (any, error) {
	c.SetDeadline(time.Now().Add(replyTime + wait))
	out := []byte("*" + strconv.Itoa(len(args)) + "\r\n")
	for _, arg := range args {
		bytes, is := arg.([]byte)
		if !is {
			bytes = []byte(fmt.Sprint(arg))
		}
		out = append(out, "$"+strconv.Itoa(len(bytes))+"\r\n"...)
		out = append(append(out, bytes...), "\r\n"...)
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
		data := make([]byte, number+2)
		_, err := io.ReadFull(c.reader, data)
		return data[:number], err
	case '*':
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
}

func (p *pool) take() (*connection, error) {
	p.lock.Lock()
	if n := len(p.idle); n > 0 {
		c := p.idle[n-1]
		p.idle = p.idle[:n-1]
		p.lock.Unlock()
		return c, nil
	}
	p.lock.Unlock()
	return p.address.open()
}

// call gives the values of an answer; the error is *Refused, *broken or of the address.
func (p *pool) call(args []any, wait time.Duration) ([]any, error) {
	c, err := p.take()
	if err != nil {
		var refused *Refused
		if errors.As(err, &refused) {
			return nil, refused
		}
		return nil, &broken{err, false}
	}
	answer, err := c.call(args, wait)
	if err != nil {
		c.Close()
		p.close() // the others are of the same age and likely broken too
		return nil, &broken{err, true}
	}
	p.lock.Lock()
	if len(p.idle) < idleMax {
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
	idle := p.idle
	p.idle = nil
	p.lock.Unlock()
	for _, c := range idle {
		c.Close()
	}
}
