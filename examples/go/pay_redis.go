// Pay an order once, with redigo: pay_redis HOST:PORT ORDER AMOUNT BANK
package main

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/gomodule/redigo/redis"
)

var (
	errNotPaid  = errors.New("not paid") // the bank was never asked: it is safe to try again
	errDeclined = errors.New("declined") // the bank said no: that is the result
)

// The work: ask the bank. Any error but errNotPaid and errDeclined may mean
// that it was paid.
func pay(bank, order, amount string) (string, error) {
	client := http.Client{Timeout: 5 * time.Second}
	answer, err := client.PostForm(bank+"/payments", url.Values{"order": {order}, "amount": {amount}})
	var dial *net.OpError
	if errors.As(err, &dial) && dial.Op == "dial" {
		return "", fmt.Errorf("%w: %v", errNotPaid, err)
	} else if err != nil {
		return "", err
	}
	answer.Body.Close()
	switch answer.StatusCode {
	case http.StatusOK:
		return fmt.Sprintf("paid %s for %s", amount, order), nil
	case http.StatusPaymentRequired:
		return "", fmt.Errorf("%w: %s for %s", errDeclined, amount, order)
	default:
		return "", fmt.Errorf("the bank answered %s", answer.Status)
	}
}

// do sends a command, and sends it again when no reply came: the nonce of BEGIN
// and the fence of the others make that safe.
func do(address, command string, args ...interface{}) (reply interface{}, err error) {
	for attempt := 0; attempt < 6; attempt++ {
		var idem redis.Conn
		idem, err = redis.Dial("tcp", address, redis.DialReadTimeout(30*time.Second)) // longer than WAIT
		if err == nil {
			reply, err = idem.Do(command, args...)
			idem.Close()
		}
		if err == nil {
			return reply, nil
		}
		time.Sleep(100 * time.Millisecond << attempt)
	}
	return nil, err
}

func inDoubt(order, why string) error {
	return fmt.Errorf("%s: outcome unknown (%s): ask the bank, then run\n"+
		"idem settle shop '%s' --as succeeded --result '...', or --as failed", order, why, order)
}

// Claim. The fingerprint makes another amount under the same order a mismatch;
// WAIT: a duplicate waits for the first one's result.
func payOnce(address, order, amount, bank string) (outcome, result string, err error) {
	sum := sha256.Sum256([]byte("pay " + order + " " + amount))
	nonce := make([]byte, 8)
	if _, err := rand.Read(nonce); err != nil {
		return "", "", err
	}
	claim, err := redis.Values(do(address, "BEGIN", "shop", order, "FP", hex.EncodeToString(sum[:]),
		"NONCE", hex.EncodeToString(nonce), "LEASE", 30000, "WAIT", 20000))
	if err != nil {
		return "", "", err
	}
	switch verdict := string(claim[0].([]byte)); verdict {
	case "started":
		outcome = "succeeded"
		result, err = pay(bank, order, amount)
		if errors.Is(err, errNotPaid) {
			do(address, "RELEASE", "shop", order, claim[1])
			return "", "", err
		} else if errors.Is(err, errDeclined) {
			outcome, result = "failed", err.Error()
		} else if err != nil { // paid or not: keep the claim, so that nobody pays again
			return "", "", inDoubt(order, err.Error())
		}
		_, err = do(address, "FINISH", "shop", order, claim[1], outcome, result)
		return outcome, result, err
	case "replay": // state, kind, expires, result
		return string(claim[1].([]byte)), string(claim[4].([]byte)), nil
	case "doubt":
		return "", "", inDoubt(order, "whoever paid it did not say how it went")
	default: // busy, mismatch
		return "", "", fmt.Errorf("%s: %s", order, verdict)
	}
}

func main() {
	outcome, result, err := payOnce(os.Args[1], os.Args[2], os.Args[3], os.Args[4])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(result)
	if outcome != "succeeded" {
		os.Exit(1)
	}
}
