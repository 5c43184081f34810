package idem

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Sender calls a service that uses idem until there is an answer. Give its client a Timeout: it holds for each try.
type Sender struct {
	Client *http.Client // http.DefaultClient without it
	Tries  int          // 6 without it
}

// Send sends the request with this key, or with a random one if it is "". The key is the same in all tries. It gives the answer of the
// service, or of the last try. It fails with ErrOutcomeUnknown where the service says that nobody knows, and with the client's error where no
// try got an answer: send it again later, with the same key. The body of the request needs GetBody, which http.NewRequest sets for bytes
// and text.
func (s *Sender) Send(r *http.Request, key string) (*http.Response, error) {
	if r.Body != nil && r.Body != http.NoBody && r.GetBody == nil {
		return nil, errors.New("idem: the body can be sent only once: give http.NewRequest a bytes.Reader or a strings.Reader")
	}
	client, tries := s.Client, s.Tries
	if client == nil {
		client = http.DefaultClient
	}
	if tries == 0 {
		tries = 6
	}
	if key == "" {
		key = nonce() + nonce()
	}
	for i := 1; ; i++ {
		try := r.Clone(r.Context())
		try.Header.Set("Idempotency-Key", `"`+strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(key)+`"`)
		if r.GetBody != nil {
			var err error
			if try.Body, err = r.GetBody(); err != nil {
				return nil, err
			}
		}
		answer, err := client.Do(try)
		retry, told := false, problemDocument{}
		if err == nil {
			if told, err = readAll(answer); strings.HasSuffix(strings.ReplaceAll(told.Type, "#", "/"), "/outcome-unknown") {
				return nil, because(ErrOutcomeUnknown, "nobody knows whether the request with the key %s was executed", key)
			}
			retry = told.Retryable
		}
		if err != nil {
			answer, retry = nil, true
		}
		if !retry || i >= tries || r.Context().Err() != nil {
			return answer, err
		}
		pause := jittered(100 * time.Millisecond << least(time.Duration(i-1), 8))
		if answer != nil {
			seconds, _ := strconv.ParseUint(answer.Header.Get("Retry-After"), 10, 16)
			pause = most(pause, time.Duration(seconds)*time.Second)
		}
		select {
		case <-time.After(pause):
		case <-r.Context().Done():
			return answer, r.Context().Err()
		}
	}
}

type problemDocument struct {
	Type      string
	Retryable bool
}

// readAll reads the body, for a connection may break in the middle of it, and leaves it to be read again; the problem that it is, if it is one.
func readAll(answer *http.Response) (told problemDocument, err error) {
	data, err := io.ReadAll(answer.Body)
	answer.Body.Close()
	answer.Body = io.NopCloser(bytes.NewReader(data))
	if strings.HasPrefix(answer.Header.Get("Content-Type"), "application/problem+json") && json.Unmarshal(data, &told) != nil {
		told = problemDocument{}
	}
	return told, err
}
