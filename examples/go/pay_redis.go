// Pay an order once, with redigo: pay_redis HOST:PORT ORDER AMOUNT LEDGER
package main

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/gomodule/redigo/redis"
)

var errNotPaid = errors.New("not paid")

// The work: here it appends a line, in your service it calls the bank.
func pay(order, amount, ledger string) (string, error) {
	f, err := os.OpenFile(ledger, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if err != nil {
		return "", fmt.Errorf("%w: %v", errNotPaid, err)
	}
	defer f.Close()
	if _, err := fmt.Fprintf(f, "%s %s\n", order, amount); err != nil {
		return "", err
	}
	return fmt.Sprintf("paid %s for %s", amount, order), nil
}

// Claim. The fingerprint makes another amount under the same order a mismatch;
// the nonce makes it safe to send the same BEGIN again after a broken
// connection; WAIT: a duplicate waits for the first one's result.
func payOnce(idem redis.Conn, order, amount, ledger string) (string, error) {
	sum := sha256.Sum256([]byte("pay " + order + " " + amount))
	nonce := make([]byte, 8)
	if _, err := rand.Read(nonce); err != nil {
		return "", err
	}
	answer, err := redis.Values(idem.Do("BEGIN", "shop", order, "FP", hex.EncodeToString(sum[:]),
		"NONCE", hex.EncodeToString(nonce), "LEASE", 30000, "WAIT", 20000))
	if err != nil {
		return "", err // "UNAVAILABLE ...", "LOST ..."
	}
	verdict, err := redis.String(answer[0], nil)
	if err != nil {
		return "", err
	}
	switch verdict {
	case "started":
		fence := answer[1].(int64)
		result, err := pay(order, amount, ledger)
		if errors.Is(err, errNotPaid) { // surely not: another may try
			idem.Do("RELEASE", "shop", order, fence)
			return "", err
		} else if err != nil { // nobody knows: leave it, it comes into doubt
			return "", err
		}
		_, err = idem.Do("FINISH", "shop", order, fence, "SUCCEEDED", result)
		return result, err
	case "replay":
		return redis.String(answer[4], nil) // state, kind, expires, result
	default: // busy, mismatch, doubt
		return "", fmt.Errorf("%s: %s", order, verdict)
	}
}

func main() {
	idem, err := redis.Dial("tcp", os.Args[1],
		redis.DialReadTimeout(30*time.Second)) // longer than WAIT
	if err == nil {
		var result string
		if result, err = payOnce(idem, os.Args[2], os.Args[3], os.Args[4]); err == nil {
			fmt.Println(result)
			return
		}
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
