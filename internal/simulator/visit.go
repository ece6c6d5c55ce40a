package simulator

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"time"
)

// The lines of a visit to the external system.
const (
	helloFormat = "hello %d %d %d %s\n" // task, token, slot, device
	greeting    = "in\n"
	goodbye     = "bye\n"
)

// leaveTimeout limits the wait for the goodbye line, because the external system may hang.
const leaveTimeout = 10 * time.Second

// callerMark is the prefix of the holder name of a caller. No device id has this prefix.
const callerMark = "@"

// Enter opens a visit to the external system for a caller (a program that leases a slot). holder, task, token and slot
// are the values of the caller's lease. The caller counts as inside until it calls leave or its process ends. Enter
// returns an error if ctx ends first.
func Enter(ctx context.Context, externalAddr, holder string, task, token int64, slot int) (leave func(), err error) {
	v := &visit{task: task, token: token, slot: slot, device: callerMark + holder}
	if err := v.enter(ctx, externalAddr); err != nil {
		return nil, err
	}
	return v.leave, nil
}

type visit struct {
	task, token int64
	slot        int
	device      string
	conn        net.Conn
}

func (v *visit) isCaller() bool { return strings.HasPrefix(v.device, callerMark) }

// enter connects to the external system and waits until the external system has counted the device. If ctx ends first,
// enter closes the connection and returns an error.
func (v *visit) enter(ctx context.Context, externalAddr string) error {
	var dialer net.Dialer
	c, err := dialer.DialContext(ctx, "tcp", externalAddr)
	if err != nil {
		return fmt.Errorf("external system: %w", err)
	}
	v.conn = c
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	_, err = fmt.Fprintf(c, helloFormat, v.task, v.token, v.slot, v.device)
	if err == nil {
		_, err = io.ReadFull(c, make([]byte, len(greeting)))
	}
	if !stop() || err != nil {
		v.leave()
		return fmt.Errorf("external system did not accept the connection: %w", cmp.Or(context.Cause(ctx), err))
	}
	return nil
}

// leave ends the visit and waits for the goodbye line. After this line, the device is no longer counted as inside.
func (v *visit) leave() {
	if v.conn == nil {
		return
	}
	_ = v.conn.SetDeadline(time.Now().Add(leaveTimeout))
	if closer, ok := v.conn.(interface{ CloseWrite() error }); ok {
		_ = closer.CloseWrite()
	}
	_, _ = io.Copy(io.Discard, v.conn)
	_ = v.conn.Close()
}
