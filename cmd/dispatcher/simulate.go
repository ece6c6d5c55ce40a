package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fleetslots/dispatcher/internal/simulator"
)

const missingTokensText = "DISPATCHER_TOKEN (role admin; not needed for --idle with a fleet token) and, unless with --credentials own, DISPATCHER_FLEET_TOKEN are needed in the environment"

func newSimulate() *cobra.Command {
	config, idle := simulator.Config{}, false
	via, credentials := string(simulator.ViaHTTP), string(simulator.CredentialsFleet)
	command := &cobra.Command{
		Use:   "simulate",
		Short: "Run a simulated fleet and external system against a running dispatcher, and judge it",
		Long: `Run a simulated fleet against a running dispatcher. The devices hold a connection
to a simulated external system while they work; it counts the devices inside.

Exit status 1 when the capacity was ever exceeded, a task was lost, or an output
differs from the one that the device sent.

Devices of the kind http and mqtt come when they are told to, mqtt also at once when
they are woken; the requests of long-poll devices are held until there is work;
periodic ones come once in each period, whatever they are told.

With --idle the devices have nothing to do, and report once in each period over HTTP,
up to millions of them: no pool, no tasks. It ends with --timeout or Ctrl-C. Exit status
1 when reports were not answered, were granted tasks, or fell behind by more than 1s:

  dispatcher simulate --idle --devices 1000000 --period 30s --timeout 5m`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			config.Via, config.Credentials = simulator.Via(via), simulator.Credentials(credentials)
			if err := checkIdle(cmd, idle, config); err != nil {
				return usageError{err}
			}
			return runSimulate(cmd, config, idle)
		},
	}
	flags := command.Flags()
	flags.StringVar(&config.URL, "url", os.Getenv("DISPATCHER_URL"), "the dispatcher, or its replicas with commas between (DISPATCHER_URL; default: the dispatcher dev that runs here, else http://127.0.0.1:8080)")
	flags.StringVar(&config.MQTTURL, "mqtt-url", os.Getenv("DISPATCHER_MQTT_URL"), "its broker (DISPATCHER_MQTT_URL; default: that of the dispatcher dev, else mqtt://127.0.0.1:1883)")
	flags.IntVar(&config.Devices, "devices", simulator.DefaultDevices, "devices of the fleet")
	flags.StringVar(&config.DevicePrefix, "prefix", simulator.DefaultPrefix, "start of their ids")
	flags.StringVar(&config.Pool, "pool", simulator.DefaultPool, "pool; created unless it exists")
	flags.IntVar(&config.Capacity, "capacity", simulator.DefaultCapacity, "its capacity when it is created")
	flags.DurationVar(&config.Lease, "lease", 0, "its lease when it is created; 0: the server's default")
	flags.IntVar(&config.Tasks, "tasks", 0, "tasks in all; 0: five a device")
	flags.StringVar(&via, "via", via, "http, mqtt, long-poll, periodic, mixed (http,mqtt), or several with commas between, dealt in turn")
	flags.StringVar(&credentials, "credentials", credentials, "fleet: all devices use the fleet token; own: each is registered first and has its own")
	flags.DurationVar(&config.Work, "work", simulator.DefaultWork, "mean work of a task, drawn within 50 %")
	flags.DurationVar(&config.Period, "period", simulator.DefaultPeriod, "how often an idle device reports unless told otherwise")
	flags.BoolVar(&idle, "idle", false, "the devices have nothing to do: measure how many reports the dispatcher answers")
	flags.IntVar(&config.Connections, "connections", simulator.DefaultConnections, "with --idle: keep-alive connections that the devices share")
	flags.BoolVar(&config.Introduce, "introduce", false, "let every device report once, at random within a period, before tasks are queued")
	flags.DurationVar(&config.NotBefore, "not-before", 0, "tasks may start so long after they were queued")
	flags.Uint64Var(&config.Seed, "seed", 0, "of all chance; 0: a new one")
	flags.DurationVar(&config.Timeout, "timeout", simulator.DefaultTimeout, "give up after; --idle: report for so long")
	addShareFlags(flags, &config)
	return command
}

// chooseServer sets the addresses and the tokens. If the user gave no address and no token, it uses
// the dispatcher dev that runs here. It does not mix the two sources, so that a token is sent only
// to its own server.
func chooseServer(config *simulator.Config) error {
	config.OperatorToken, config.FleetToken = os.Getenv("DISPATCHER_TOKEN"), os.Getenv("DISPATCHER_FLEET_TOKEN")
	if config.URL+config.MQTTURL+config.OperatorToken+config.FleetToken == "" {
		dev, err := runningDev("")
		if err != nil {
			return usageError{fmt.Errorf("%w: for another dispatcher, %s", err, missingTokensText)}
		}
		config.URL, config.MQTTURL, config.OperatorToken, config.FleetToken = dev.URL, dev.MQTTURL, dev.Token, dev.FleetToken
	}
	config.URL = cmp.Or(config.URL, "http://127.0.0.1:8080")
	config.MQTTURL = cmp.Or(config.MQTTURL, "mqtt://127.0.0.1:1883")
	return nil
}

// addShareFlags adds the flags for the shares of faults and of long tasks.
func addShareFlags(flags *pflag.FlagSet, config *simulator.Config) {
	for _, f := range []struct {
		name, help string
		to         *float64
	}{
		{"long", "tasks that take 0.9 of the lease instead of --work", &config.LongShare},
		{"silent", "grants whose device falls silent, holding its slot until the lease ends", &config.Silent},
		{"gone", "grants whose device falls silent for good; its task is not tried again", &config.Gone},
		{"late", "silent devices that send their result after all", &config.Late},
		{"slow", "grants that take longer than half a lease", &config.Slow},
		{"reboot", "grants whose device forgets its work on the way", &config.Reboot},
		{"duplicate", "reports sent twice", &config.Duplicate},
		{"lost-replies", "reports whose reply is lost", &config.LostReplies},
		{"garbage", "reports preceded by a malformed one", &config.Garbage},
	} {
		flags.Var((*share)(f.to), f.name, "share of "+f.help)
	}
}

// checkIdle refuses combinations of flags that have no meaning together.
func checkIdle(cmd *cobra.Command, idle bool, config simulator.Config) error {
	flags := cmd.Flags()
	if !idle {
		if flags.Changed("connections") {
			return errors.New("--connections is only for --idle: other devices have connections of their own")
		}
		return nil
	}
	var err error
	flags.Visit(func(f *pflag.Flag) {
		switch f.Name {
		case "idle", "url", "devices", "prefix", "via", "credentials", "period", "timeout", "connections":
		default:
			err = errors.Join(err, fmt.Errorf("--%s is not for --idle: the devices have nothing to do", f.Name))
		}
	})
	switch {
	case config.Via != simulator.ViaHTTP && config.Via != simulator.ViaPeriodic:
		err = errors.Join(err, fmt.Errorf("--via %s is not for --idle: each device would need a connection or a parked request; want http", config.Via))
	case config.Devices < 1 || config.Connections < 1:
		err = errors.Join(err, errors.New("--devices and --connections: want at least 1"))
	case config.Period <= 0 || config.Timeout <= 0:
		err = errors.Join(err, errors.New("--period and --timeout: want a time above 0"))
	}
	return err
}

func runSimulate(cmd *cobra.Command, config simulator.Config, idle bool) error {
	if err := config.Via.Check(); err != nil {
		return usageError{fmt.Errorf("--%w", err)}
	}
	if !slices.Contains([]simulator.Credentials{simulator.CredentialsFleet, simulator.CredentialsOwn}, config.Credentials) {
		return usageError{fmt.Errorf("--credentials: %q is none of fleet, own", config.Credentials)}
	}
	if err := chooseServer(&config); err != nil {
		return err
	}
	own := config.Credentials == simulator.CredentialsOwn
	if config.OperatorToken == "" && (own || !idle) || config.FleetToken == "" && !own {
		return usageError{errors.New(missingTokensText)}
	}
	if idle {
		summary, err := simulator.RunIdle(cmd.Context(), config, cmd.ErrOrStderr())
		if err != nil {
			return err
		}
		return errors.Join(summary.Print(cmd.OutOrStdout()), summary.Err())
	}
	if config.Seed == 0 {
		config.Seed = uint64(time.Now().UnixNano())
	}
	_, _ = fmt.Fprintln(cmd.ErrOrStderr(), "seed", config.Seed)
	summary, err := simulator.Run(cmd.Context(), config, cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	return errors.Join(summary.Print(cmd.OutOrStdout()), summary.Err())
}

// share is a probability on the command line, such as 0.02 or 2%.
type share float64

// String returns the share as a percentage.
func (s *share) String() string { return strconv.FormatFloat(100*float64(*s), 'g', -1, 64) + "%" }

// Type returns the word that the help shows for a value.
func (s *share) Type() string { return "share" }

// Set parses a number or a percentage.
func (s *share) Set(text string) error {
	number, percent := strings.CutSuffix(text, "%")
	value, err := strconv.ParseFloat(number, 64)
	if err != nil {
		return fmt.Errorf("%q is neither a number nor a percentage", text)
	}
	if percent {
		value /= 100
	}
	if !(value >= 0 && value <= 1) {
		return fmt.Errorf("%s is not between 0 and 100%%", text)
	}
	*s = share(value)
	return nil
}
