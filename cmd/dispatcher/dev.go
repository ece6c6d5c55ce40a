package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"github.com/spf13/cobra"

	"github.com/fleetslots/dispatcher/internal/app"
	"github.com/fleetslots/dispatcher/internal/localdev"
	"github.com/fleetslots/dispatcher/internal/rescue"
	"github.com/fleetslots/dispatcher/internal/simulator"
)

// Settings of the demonstration fleet. With them, all slots are held within seconds, tasks end, and the slot of a silent
// device is released.
const (
	demoPool   = "demo"
	demoLease  = 10 * time.Second
	demoWork   = 4 * time.Second
	demoPeriod = 5 * time.Second
	demoSilent = 0.02
)

func devCommand() *cobra.Command {
	options := app.DevOptions{Version: version}
	var simulatedDevices int
	var redis string
	command := &cobra.Command{
		Use:   "dev",
		Short: "Run everything in one process, for trying things out; nothing to install",
		RunE: func(cmd *cobra.Command, _ []string) error {
			options.ListenMayMove = !cmd.Flags().Changed("listen")
			options.MQTTMayMove = !cmd.Flags().Changed("mqtt-listen")
			options.Program = invocationName()
			options.Logger = newLogger(cmd.ErrOrStderr(), "text", "info")
			if err := chooseRedis(redis, &options); err != nil {
				return err
			}
			return runDev(cmd, options, simulatedDevices)
		},
	}
	flags := command.Flags()
	flags.StringVar(&options.Listen, "listen", "127.0.0.1:8080", "address for HTTP; if not given and the port is in use, the next free port is used")
	flags.StringVar(&options.MQTT, "mqtt-listen", "127.0.0.1:1883", "address of the embedded MQTT broker; if not given and the port is in use, the next free port is used")
	flags.StringVar(&options.Data, "data", ".dispatcher", "folder of the ledger and the tokens")
	flags.StringVar(&redis, "redis", inProcessRedis, "memory: an in-process Redis; auto: a private redis-server if this machine has one, which carries more devices")
	flags.DurationVar(&options.ReportPeriod, "report-period", 5*time.Second, "time between two reports of an idle device")
	flags.IntVar(&simulatedDevices, "simulate", 0, "number of devices of a simulated fleet that also runs, over HTTP and MQTT; 0: none")
	return command
}

// The values of the flag --redis.
const (
	inProcessRedis = "memory"
	autoRedis      = "auto"
)

// chooseRedis sets in options the Redis of the embedded mode. flagValue is the value of the flag --redis.
func chooseRedis(flagValue string, options *app.DevOptions) error {
	switch flagValue {
	case inProcessRedis:
		return nil
	case autoRedis:
	default:
		return usageError{fmt.Errorf("--redis %q: want %s or %s", flagValue, inProcessRedis, autoRedis)}
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding this program: %w", err)
	}
	options.GuardArgs = []string{self, "run-guard", "1s"}
	options.RedisServer, err = exec.LookPath("redis-server")
	if errors.Is(err, exec.ErrNotFound) {
		options.Logger.Info("this machine has no redis-server, so an in-process Redis is used")
		err = nil
	}
	return err
}

// invocationName returns the command with which a shell in this folder can call this program: its name if PATH leads
// to this program, otherwise the path with which it was started.
func invocationName() (command string) {
	self, err := os.Executable()
	if err != nil {
		return os.Args[0]
	}
	found, err := exec.LookPath("dispatcher")
	if err != nil || !isSameFile(found, self) {
		return os.Args[0]
	}
	return "dispatcher"
}

func isSameFile(pathA, pathB string) (isSame bool) {
	one, err := os.Stat(pathA)
	if err != nil {
		return false
	}
	other, err := os.Stat(pathB)
	return err == nil && os.SameFile(one, other)
}

// runDev runs an embedded dispatcher with these options until the user interrupts the command. If simulatedDevices is not
// 0, it also runs a fleet of this number of simulated devices.
func runDev(cmd *cobra.Command, options app.DevOptions, simulatedDevices int) error {
	if simulatedDevices < 0 {
		return usageError{errors.New("--simulate: must not be negative")}
	}
	options.AnnounceDirs = []string{options.Data}
	if state, err := localdev.StateDir(); err == nil {
		options.AnnounceDirs = append(options.AnnounceDirs, state)
	}
	server, err := app.NewDev(cmd.Context(), options)
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	var demo func(context.Context) error
	if simulatedDevices > 0 {
		demo = func(ctx context.Context) error { return runDemoFleet(ctx, server, simulatedDevices, out) }
	}
	return runServerAndDemo(cmd.Context(), server.Run, func() { server.WriteBanner(out) }, demo)
}

// runServerAndDemo calls runServer, which runs a server until ctx ends. When the server has started, runServerAndDemo calls onStarted. If
// runDemo is not nil, runServerAndDemo then runs it concurrently with the server. An error of runServer or runDemo ends both.
func runServerAndDemo(ctx context.Context, runServer func(ctx context.Context, onStarted func()) error, onStarted func(), runDemo func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var group rescue.Group
	startWork := func(work func() error) {
		group.Go(func() error {
			err := rescue.Call(work)
			if err != nil {
				cancel(err)
			}
			return err
		})
	}
	startWork(func() error {
		return runServer(ctx, func() {
			onStarted()
			if runDemo != nil {
				startWork(func() error { return runDemo(ctx) })
			}
		})
	})
	return group.Wait()
}

// runDemoFleet runs a simulated fleet against the server until ctx ends.
func runDemoFleet(ctx context.Context, server *app.DevServer, deviceCount int, out io.Writer) error {
	_, _ = fmt.Fprintf(out, `  Simulating %d devices (half over HTTP, half over MQTT) on pool %q; a simulated external system with %d slots counts the connected devices.
  %.0f %% of the grants go to devices that fall silent: their slots are taken back when the lease of %s ends. Ctrl-C ends it.

`, deviceCount, demoPool, simulator.DefaultCapacity, 100*demoSilent, demoLease)
	summary, err := simulator.Run(ctx, simulator.Config{
		URL: server.URL, MQTTURL: server.MQTTURL, OperatorToken: server.AdminToken, FleetToken: server.FleetToken,
		Devices: deviceCount, Pool: demoPool, Capacity: simulator.DefaultCapacity, Lease: demoLease, Via: simulator.ViaMixed,
		Work: demoWork, Period: demoPeriod, Faults: simulator.Faults{Silent: demoSilent},
		Seed: uint64(time.Now().UnixNano()), Endless: true,
	}, out)
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintln(out)
	return errors.Join(summary.PrintShort(out), summary.Err())
}
