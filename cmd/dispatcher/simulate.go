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

const missingTokensText = "set DISPATCHER_TOKEN (role admin; not required for --idle with a fleet token) and, except with --credentials own, DISPATCHER_FLEET_TOKEN"

func simulateCommand() *cobra.Command {
	config, idle := simulator.Config{}, false
	via, credentials := string(simulator.ViaHTTP), string(simulator.CredentialsFleet)
	command := &cobra.Command{
		Use:   "simulate",
		Short: "Run a simulated fleet and external system against a running dispatcher, and check the result",
		Long: `Run a simulated fleet against a running dispatcher. The devices hold a connection
to a simulated external system while they work; it counts the connected devices.

Exit status 1 if the capacity was ever exceeded, a task was lost, or an output
differs from the one that the device sent.

Devices of the kinds http and mqtt report at the time that the latest reply requests, and
mqtt devices also at once when they are woken. The requests of long-poll devices are held
until there is work. Periodic devices report once in each period, whatever replies request.

With --idle the devices have nothing to do, and report once in each period over HTTP. There
can be millions of devices; there is no pool and no task. It ends with --timeout or Ctrl-C.
Exit status 1 if reports were not answered, were granted tasks, or were more than 1s late:

  dispatcher simulate --idle --devices 1000000 --period 30s --timeout 5m`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			config.Via, config.Credentials = simulator.Via(via), simulator.Credentials(credentials)
			if err := checkIdleFlags(cmd, idle, config); err != nil {
				return usageError{err}
			}
			return runSimulation(cmd, config, idle)
		},
	}
	flags := command.Flags()
	flags.StringVar(&config.URL, "url", os.Getenv("DISPATCHER_URL"), "URL of the dispatcher, or the URLs of its replicas, separated by commas (DISPATCHER_URL; default: the dispatcher dev that runs here, else http://127.0.0.1:8080)")
	flags.StringVar(&config.MQTTURL, "mqtt-url", os.Getenv("DISPATCHER_MQTT_URL"), "URL of the MQTT broker (DISPATCHER_MQTT_URL; default: the broker of the dispatcher dev, else mqtt://127.0.0.1:1883)")
	flags.IntVar(&config.Devices, "devices", simulator.DefaultDevices, "number of devices of the fleet")
	flags.StringVar(&config.DevicePrefix, "prefix", simulator.DefaultPrefix, "prefix of the ids of the devices")
	flags.StringVar(&config.Pool, "pool", simulator.DefaultPool, "name of the pool, which is created unless it exists")
	flags.IntVar(&config.Capacity, "capacity", simulator.DefaultCapacity, "capacity of the pool if it is created")
	flags.DurationVar(&config.Lease, "lease", 0, "lease of the pool if it is created; 0: the server's default")
	flags.IntVar(&config.Tasks, "tasks", 0, "total number of tasks; 0: five per device")
	flags.StringVar(&via, "via", via, "kind of the devices: http, mqtt, long-poll, periodic, mixed (http,mqtt), or several kinds, separated by commas and assigned in turn")
	flags.StringVar(&credentials, "credentials", credentials, "fleet: all devices use the fleet token; own: each device is registered first and has its own token")
	flags.DurationVar(&config.Work, "work", simulator.DefaultWork, "mean duration of a task; the durations are random within 50 % of it")
	flags.DurationVar(&config.Period, "period", simulator.DefaultPeriod, "time between two reports of an idle device, unless a reply requests another time")
	flags.BoolVar(&idle, "idle", false, "the devices have nothing to do: measure how many reports the dispatcher answers")
	flags.IntVar(&config.Connections, "connections", simulator.DefaultConnections, "with --idle: keep-alive connections that the devices share")
	flags.BoolVar(&config.Introduce, "introduce", false, "let every device report once, at random within a period, before tasks are queued")
	flags.DurationVar(&config.NotBefore, "not-before", 0, "time from the queueing of the tasks to their earliest start")
	flags.Uint64Var(&config.Seed, "seed", 0, "seed of all random numbers; 0: a new seed")
	flags.DurationVar(&config.Timeout, "timeout", simulator.DefaultTimeout, "maximum duration of the run; with --idle: how long the devices report")
	addShareFlags(flags, &config)
	return command
}

// chooseServer sets the addresses and the tokens in config. If the user gave neither an address nor a token, it takes all
// of them from the server `dispatcher dev` on this machine. It never combines the two sources, because a token must be
// sent only to its own server.
func chooseServer(config *simulator.Config) error {
	config.OperatorToken, config.FleetToken = os.Getenv("DISPATCHER_TOKEN"), os.Getenv("DISPATCHER_FLEET_TOKEN")
	if config.URL+config.MQTTURL+config.OperatorToken+config.FleetToken == "" {
		dev, err := findDevServer("")
		if err != nil {
			return usageError{fmt.Errorf("%w; to use another dispatcher, %s", err, missingTokensText)}
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
		{"gone", "grants whose device falls silent for good; its task is not retried", &config.Gone},
		{"late", "silent devices that send their result late", &config.Late},
		{"slow", "grants that take longer than half a lease", &config.Slow},
		{"reboot", "grants whose device restarts and forgets its work", &config.Reboot},
		{"duplicate", "reports sent twice", &config.Duplicate},
		{"lost-replies", "reports whose reply is lost", &config.LostReplies},
		{"garbage", "reports preceded by a malformed one", &config.Garbage},
	} {
		flags.Var((*shareFlag)(f.to), f.name, "share of "+f.help)
	}
}

// checkIdleFlags returns an error if the flags of the command contradict each other. isIdle is the value of the flag --idle,
// which selects a fleet without tasks.
func checkIdleFlags(cmd *cobra.Command, isIdle bool, config simulator.Config) error {
	flags := cmd.Flags()
	if !isIdle {
		if flags.Changed("connections") {
			return errors.New("--connections: only together with --idle, because other devices have their own connections")
		}
		return nil
	}
	var err error
	flags.Visit(func(f *pflag.Flag) {
		switch f.Name {
		case "idle", "url", "devices", "prefix", "via", "credentials", "period", "timeout", "connections":
		default:
			err = errors.Join(err, fmt.Errorf("--%s: not together with --idle, because idle devices do no tasks", f.Name))
		}
	})
	switch {
	case config.Via != simulator.ViaHTTP && config.Via != simulator.ViaPeriodic:
		err = errors.Join(err, fmt.Errorf("--via %s: not together with --idle, because each device would need a connection or a parked request; use http", config.Via))
	case config.Devices < 1 || config.Connections < 1:
		err = errors.Join(err, errors.New("--devices and --connections: at least 1"))
	case config.Period <= 0 || config.Timeout <= 0:
		err = errors.Join(err, errors.New("--period and --timeout: must be longer than 0"))
	}
	return err
}

// runSimulation runs the simulation, or an idle fleet if isIdle is true, and writes the summary.
func runSimulation(cmd *cobra.Command, config simulator.Config, isIdle bool) error {
	if err := config.Via.Check(); err != nil {
		return usageError{fmt.Errorf("--%w", err)}
	}
	if !slices.Contains([]simulator.Credentials{simulator.CredentialsFleet, simulator.CredentialsOwn}, config.Credentials) {
		return usageError{fmt.Errorf("--credentials: %q is not one of fleet, own", config.Credentials)}
	}
	if err := chooseServer(&config); err != nil {
		return err
	}
	for address := range strings.SplitSeq(config.URL, ",") {
		(&console{errs: cmd.ErrOrStderr()}).warnOfPlainHTTP(strings.TrimSpace(address))
	}
	own := config.Credentials == simulator.CredentialsOwn
	if config.OperatorToken == "" && (own || !isIdle) || config.FleetToken == "" && !own {
		return usageError{errors.New(missingTokensText)}
	}
	if isIdle {
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

// shareFlag is a probability on the command line, such as 0.02 or 2%.
type shareFlag float64

// String returns the share as a percentage.
func (s *shareFlag) String() string { return strconv.FormatFloat(100*float64(*s), 'g', -1, 64) + "%" }

func (s *shareFlag) Type() string { return "share" }

// Set parses text, a number from 0 to 1 or a percentage such as 2%, and stores it as the share.
func (s *shareFlag) Set(text string) error {
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
	*s = shareFlag(value)
	return nil
}
