"""Ready-to-train models: classifiers, Hugging Face transformers, vision and segmentation networks, initializers."""

from __future__ import annotations

from composer._lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "ComposerClassifier": "composer.models.classifier",
        "ComposerDeepLabV3": "composer.models.deeplabv3",
        "ComposerModel": "composer.core.model",
        "ComposerResNet": "composer.models.resnet",
        "ComposerResNetCIFAR": "composer.models.resnet_cifar",
        "EfficientNetB0": "composer.models.efficientnet",
        "HuggingFaceModel": "composer.models.huggingface",
        "Initializer": "composer.models.initializers",
        "MNIST_Classifier": "composer.models.classify_mnist",
        "Timm": "composer.models.timm",
        "UNet": "composer.models.unet",
        "ViTSmallPatch16": "composer.models.vit",
        "composer_deeplabv3": "composer.models.deeplabv3",
        "composer_efficientnetb": "composer.models.efficientnet",
        "composer_efficientnetb0": "composer.models.efficientnet",
        "composer_resnet": "composer.models.resnet",
        "composer_resnet_cifar": "composer.models.resnet_cifar",
        "composer_timm": "composer.models.timm",
        "composer_unet": "composer.models.unet",
        "composer_vit": "composer.models.vit",
        "create_bert_classification": "composer.models.bert",
        "create_bert_mlm": "composer.models.bert",
        "create_gpt2": "composer.models.gpt2",
        "mnist_model": "composer.models.classify_mnist",
        "vit_small_patch16": "composer.models.vit",
        "write_huggingface_pretrained_from_composer_checkpoint": "composer.models.huggingface",
    },
)
