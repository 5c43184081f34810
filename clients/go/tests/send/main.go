// The retrying HTTP client: send URL KEY TRIES. An empty key: one of its own. Prints one JSON object.
package main

import (
	"encoding/json"
	"errors"
	"io"
	"log"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"idem"
)

func main() {
	tries, err := strconv.Atoi(os.Args[3])
	if err != nil {
		log.Fatal(err)
	}
	sender := idem.Sender{Tries: tries, Client: &http.Client{Timeout: time.Minute,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
	request, err := http.NewRequest("POST", os.Args[1], strings.NewReader("book"))
	if err != nil {
		log.Fatal(err)
	}
	told := map[string]any{"error": "no answer"}
	if answer, err := sender.Send(request, os.Args[2]); err == nil {
		body, _ := io.ReadAll(answer.Body)
		told = map[string]any{"status": answer.StatusCode, "body": string(body)}
	} else if errors.Is(err, idem.ErrOutcomeUnknown) {
		told["error"] = "OutcomeUnknown"
	}
	json.NewEncoder(os.Stdout).Encode(told)
}
