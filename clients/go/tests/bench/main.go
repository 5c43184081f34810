// Calls a second: bench idem|redis PORT SECONDS CALLERS. Redis' client is redigo. See bench/90-clients.
package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"log"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gomodule/redigo/redis"

	"idem"
)

func main() {
	what, address := os.Args[1], "127.0.0.1:"+os.Args[2]
	seconds, _ := strconv.ParseFloat(os.Args[3], 64)
	callers, _ := strconv.Atoi(os.Args[4])
	client, err := idem.Open("idem://"+address, idem.Scope("bench"))
	if err != nil {
		log.Fatal(err)
	}
	pool := &redis.Pool{MaxIdle: callers, Dial: func() (redis.Conn, error) { return redis.Dial("tcp", address) }}
	once := func(key string) error {
		_, err := idem.Do(context.Background(), client, key, func(context.Context) (map[string]int, error) { return map[string]int{"order": 7}, nil })
		return err
	}
	bare := func(key string) error {
		c := pool.Get()
		defer c.Close()
		if _, err := c.Do("SET", key, "claimed", "NX", "PX", 86400000); err != nil {
			return err
		}
		_, err := c.Do("SET", key, `{"order":7}`, "PX", 86400000)
		return err
	}
	call := map[string]func(string) error{"idem": once, "redis": bare}[what]
	var random [6]byte
	rand.Read(random[:])
	var count int64
	var all sync.WaitGroup
	begin := time.Now()
	for i := 0; i < callers; i++ {
		all.Add(1)
		go func(i int) {
			defer all.Done()
			for n := 0; time.Since(begin).Seconds() < seconds; n++ {
				if err := call(fmt.Sprintf("%s-%d-%d", hex.EncodeToString(random[:]), i, n)); err != nil {
					log.Fatal(err)
				}
				atomic.AddInt64(&count, 1)
			}
		}(i)
	}
	all.Wait()
	fmt.Println(float64(count) / time.Since(begin).Seconds())
}
