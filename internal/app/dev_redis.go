package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/fleetslots/dispatcher/dispatcher/credentials"
	"github.com/fleetslots/dispatcher/internal/child"
	"github.com/fleetslots/dispatcher/internal/memoryredis"
	"github.com/fleetslots/dispatcher/internal/redisconn"
)

// privateRedisConfig is the configuration of a private redis-server, with its port and password. It stores nothing on disk.
const privateRedisConfig = `bind 127.0.0.1
port %s
requirepass %s
save ""
appendonly no
maxmemory-policy noeviction
loglevel warning
`

const (
	redisStartLimit = 10 * time.Second
	inProcessLimit  = time.Minute // time limit of one step of a call to the in-process Redis
)

// openRedis starts the Redis of the embedded mode: the program options.RedisServer or, if it is empty, an in-process
// Redis. Only for an in-process Redis, it also returns backends.advanceTTLs. Redis starts empty each time, and its data
// is restored from the ledger.
func (d *DevServer) openRedis(ctx context.Context, options DevOptions, opened *cleanup) (conn *redisconn.Conn, advanceTTLs func(time.Duration), err error) {
	password := credentials.NewToken() // every user of this machine can connect to the port
	var addr string
	if options.RedisServer != "" {
		addr, err = d.startPrivateRedis(ctx, options, password, opened)
	} else {
		memory, failed := memoryredis.Start(password)
		if err = failed; err == nil {
			opened.add("in-process redis", func() error { memory.Close(); return nil })
			addr, advanceTTLs = memory.Addr(), memory.FastForward
		}
	}
	if err != nil {
		return nil, nil, err
	}
	at := redisconn.Options(addr)
	at.Password = password
	if options.RedisServer == "" { // it cannot fail alone: without an answer, the process waits for the processor
		at.DialTimeout, at.ReadTimeout, at.WriteTimeout, at.PoolTimeout = inProcessLimit, inProcessLimit, inProcessLimit, inProcessLimit
	}
	conn = redisconn.Open(at)
	opened.add("redis client", conn.Close)
	if options.RedisServer != "" {
		err = waitForRedis(ctx, conn)
	}
	return conn, advanceTTLs, err
}

// startPrivateRedis starts options.RedisServer on a free loopback port and returns its address. If this process is killed, the guard of
// package child ends redis-server.
func (d *DevServer) startPrivateRedis(ctx context.Context, options DevOptions, password string, opened *cleanup) (addr string, err error) {
	free, err := listenOn(ctx, "127.0.0.1:0", false)
	if err != nil {
		return "", err
	}
	addr = free.Addr().String()
	_, port, _ := net.SplitHostPort(addr)
	config, write, err := os.Pipe()
	if err := errors.Join(err, free.Close()); err != nil {
		return "", fmt.Errorf("starting redis-server: %w", err)
	}
	defer func() { _ = config.Close() }()
	_, err = fmt.Fprintf(write, privateRedisConfig, port, password) // the text fits into the buffer of a pipe, so the write does not block
	null, failed := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err := errors.Join(err, write.Close(), failed); err != nil {
		return "", fmt.Errorf("starting redis-server: %w", err)
	}
	defer func() { _ = null.Close() }()
	server, err := child.Start(child.Config{
		Args: []string{options.RedisServer, "-"}, Env: os.Environ(), In: config, Out: null, Err: os.Stderr, // it writes errors of its start to stderr
		GuardArgs: options.GuardArgs, Deadline: time.Now().AddDate(10, 0, 0),
	})
	if err != nil {
		return "", fmt.Errorf("starting redis-server: %w", err)
	}
	opened.add("redis-server", func() error {
		server.Signal(syscall.SIGTERM)
		<-server.Ended()
		return nil
	})
	d.redisEnded = server.Ended()
	return addr, nil
}

func waitForRedis(ctx context.Context, conn *redisconn.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, redisStartLimit)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := conn.Client.Ping(ctx).Err()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("redis-server does not answer: %w", err)
		}
	}
}
