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

// leaveTimeout is the maximum time for which a leaving device waits for the goodbye line, because
// the external system may hang.
const leaveTimeout = 10 * time.Second

// callerMark is the prefix of the holder names of callers. No device id has this prefix.
const callerMark = "@"

// Enter opens a visit to the external system, which listens on externalAddr, for a caller (a program that leases a slot). It can be called
// while the fleet runs. holder is the name under which the caller holds the slot; task and token (the fencing token) are those of its
// lease. The external system counts the caller until the function leave returns or the process of the caller ends. Enter returns an error
// if ctx ends first.
func Enter(ctx context.Context, externalAddr, holder string, task, token int64, slot int) (leave func(), err error) {
	v := &visit{task: task, token: token, slot: slot, device: callerMark + holder}
	if err := v.enter(ctx, externalAddr); err != nil {
		return nil, err
	}
	return v.leave, nil
}

// visit is a device's stay in the external system.
type visit struct {
	task, token int64
	slot        int
	device      string
	conn        net.Conn
}

// isCaller reports whether the visit is by a caller.
func (v *visit) isCaller() bool { return strings.HasPrefix(v.device, callerMark) }

// enter connects to the external system at externalAddr and waits until it has counted the device. If ctx ends first, enter leaves and
// returns an error.
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

// leave closes the connection for writing at once, and then waits for the goodbye line. After this line, the external system no longer
// counts the device as inside.
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
