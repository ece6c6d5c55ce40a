package main

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// newHealthcheck is for containers without a shell.
func newHealthcheck() *cobra.Command {
	url := envOr("DISPATCHER_URL", "http://127.0.0.1:8080")
	command := &cobra.Command{
		Use:   "healthcheck",
		Short: "Exit 0 when the dispatcher is ready, 1 when not",
		RunE: func(cmd *cobra.Command, _ []string) error {
			client := &http.Client{Timeout: 3 * time.Second}
			request, err := http.NewRequestWithContext(cmd.Context(), http.MethodGet, strings.TrimSuffix(url, "/")+"/readyz", nil)
			if err != nil {
				return usageError{fmt.Errorf("--url: %w", err)}
			}
			response, err := client.Do(request)
			if err != nil {
				return err
			}
			defer func() { _ = response.Body.Close() }()
			if response.StatusCode != http.StatusOK {
				return fmt.Errorf("not ready: HTTP %d", response.StatusCode)
			}
			return nil
		},
	}
	command.Flags().StringVar(&url, "url", url, "the dispatcher (DISPATCHER_URL)")
	return command
}
