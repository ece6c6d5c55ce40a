package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"
)

// task is the work of the device: fill it in. This is the task of the tests, a connection to a TCP server. status is
// succeeded, failed, rejected or returned. When ctx ends, task leaves the external system within a second. holder is
// "DEVICE TASK TOKEN", for an external system that refuses older tokens.
func task(ctx context.Context, payload json.RawMessage, holder string) (status string, output any, problem string) {
	var p struct {
		System, Fail string
		Seconds      float64
		OutputBytes  int `json:"output_bytes"`
	}
	_ = json.Unmarshal(payload, &p)
	conn, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "tcp", p.System)
	if err != nil {
		return "failed", nil, err.Error()
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	_, _ = fmt.Fprintln(conn, holder)
	_ = conn.SetReadDeadline(time.Now().Add(time.Duration(p.Seconds * 1e9)))
	if _, err = conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		return "failed", nil, "the external system closed the connection"
	} else if p.Fail != "" {
		return "failed", nil, p.Fail
	}
	if p.OutputBytes == 0 {
		return "succeeded", nil, ""
	}
	return "succeeded", map[string]string{"data": strings.Repeat("x", p.OutputBytes)}, ""
}
