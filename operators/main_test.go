package operators_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/internal/app"
)

// TestMain runs the tests and the examples against a running dispatcher. They find its address in the same
// environment variables as the commands of the program.
func TestMain(m *testing.M) {
	code, err := withDispatcher(m.Run)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code) //nolint:forbidigo // the end of the tests
}

func withDispatcher(run func() int) (code int, err error) {
	data, err := os.MkdirTemp("", "operators")
	if err != nil {
		return 0, err
	}
	defer func() { _ = os.RemoveAll(data) }()
	ctx, stop := context.WithCancel(context.Background())
	dev, err := app.NewDev(ctx, app.DevOptions{
		Listen: "127.0.0.1:0", MQTT: "127.0.0.1:0", Data: data, ReportPeriod: time.Second, Version: "test", Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		stop()
		return 0, err
	}
	ended := make(chan error, 1)
	go func() { ended <- dev.Run(ctx, func() {}) }()
	for name, value := range map[string]string{"DISPATCHER_URL": dev.URL, "DISPATCHER_TOKEN": dev.AdminToken} {
		if err := os.Setenv(name, value); err != nil {
			panic(err)
		}
	}
	code = run()
	stop()
	return code, <-ended
}
