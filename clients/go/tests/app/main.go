// The application of clients/conformance/README.md with net/http: app PORT FOLDER URL.
package main

import (
	"encoding/json"
	"io"
	"log"
	"net/http"
	"os"
	"strings"
	"time"

	"idem"
)

func serve(effects *os.File) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/upload" {
			if _, err := io.Copy(io.Discard, r.Body); err != nil {
				http.Error(w, "half", http.StatusBadRequest)
				return
			}
		}
		effects.WriteString(r.URL.Path + "\n")
		switch strings.TrimPrefix(r.URL.Path, "/required") {
		case "/orders":
			body, _ := io.ReadAll(r.Body)
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Location", "/orders/7")
			w.Header()["X-Two"] = []string{"a", "b"}
			http.SetCookie(w, &http.Cookie{Name: "secret", Value: "1"})
			w.WriteHeader(http.StatusCreated)
			json.NewEncoder(w).Encode(map[string]any{"order": 7, "got": string(body), "名": "书"})
		case "/slow":
			time.Sleep(3 * time.Second)
			io.WriteString(w, "slow")
		case "/missing":
			http.NotFound(w, r)
		case "/limited":
			w.WriteHeader(http.StatusTooManyRequests)
		case "/throws":
			panic("the service failed")
		case "/unknown":
			idem.Report(r.Context(), idem.ErrOutcomeUnknown)
		case "/refused":
			idem.Report(r.Context(), idem.ErrNotExecuted)
		case "/redirect":
			http.Redirect(w, r, "/elsewhere", http.StatusFound)
		case "/large-failure":
			w.WriteHeader(http.StatusInternalServerError)
			w.Write(make([]byte, 3<<20))
		case "/large":
			w.Write(make([]byte, 3<<20))
		default:
			io.WriteString(w, "fine")
		}
	}
}

func main() {
	client, err := idem.Open(os.Args[3], idem.Deadline(2*time.Second))
	if err != nil {
		log.Fatal(err)
	}
	effects, err := os.OpenFile(os.Args[2]+"/effects", os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/", idem.Guard{Client: client}.Wrap(serve(effects)))
	mux.Handle("/required/", idem.Guard{Client: client, Required: true, MaxBody: 1000, Options: []idem.Option{idem.Loose(), idem.Wait(time.Minute)},
		Scope: func(r *http.Request) string { return r.Header.Get("X-Tenant") }}.Wrap(serve(effects)))
	log.Fatal(http.ListenAndServe("127.0.0.1:"+os.Args[1], mux))
}
