package mqtt

import (
	"context"
	"crypto/tls"
	"net"
	"net/url"
)

// Dialer returns what opens a network connection to the broker of a URL as
// Options has it, for other clients of the same broker. Every write on it ends.
func Dialer(broker string, settings *tls.Config) (func(context.Context) (net.Conn, error), error) {
	broker, err := parseURL(broker)
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(broker)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) (net.Conn, error) { return dial(ctx, u, settings) }, nil
}
