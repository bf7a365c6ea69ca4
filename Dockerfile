# The image of the distribution: `make image` stages what goes into it, the files
# below the image's root, and builds this. Nothing is downloaded.
FROM scratch
COPY . /
# Root without the rights of root: the capabilities that the collector needs
# reach no other user of a container (docs/security.md). Run it with
# --cap-drop=ALL and the four, as deploy/helm/hotprofile does.
USER 0:0
ENTRYPOINT ["/otelcol-hotprofile"]
CMD ["--config", "/etc/otelcol-hotprofile/config.yaml"]
